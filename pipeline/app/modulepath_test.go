package app

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
)

// The path is the one that the go command reads.
func TestModulePath(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"module example.com/shop\n":                                        "example.com/shop",
		"// a shop\n\n\tmodule   example.com/shop // of ours\n\ngo 1.26\n": "example.com/shop",
		"module \"example.com/shop\"\r\n":                                  "example.com/shop",
		"module `example.com/shop`":                                        "example.com/shop",
		"module \"example.com/shop\n":                                      "",
		"go 1.26\n":                                                        "",
		"modules example.com/shop\n":                                       "",
		"module // example.com/shop\n":                                     "",
		"":                                                                 "",
	} {
		require.Equal(t, want, modulePath(text), text)
		require.Equal(t, want, modfile.ModulePath([]byte(text)), text)
	}
}
