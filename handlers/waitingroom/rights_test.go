package waitingroom

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The start checks the rights for each command of a script, and the README has them.
func TestTheRightsForTheCommandsOfTheScripts(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	p := &Plugin{config: config{Replicas: 1}}
	readme := read("README.md")
	for _, name := range p.commands() {
		require.Contains(t, readme, "+"+name, "the README has the commands that are checked")
	}
	shared := read("../../plugins/redis/README.md")
	require.Contains(t, shared, "+@stream", "it has the commands XADD, XLEN and so on")
	names, err := filepath.Glob("room/lua/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		for _, found := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`).FindAllStringSubmatch(read(name), -1) {
			command := strings.ToLower(found[1])
			if !strings.HasPrefix(command, "x") && !strings.Contains(shared, "+"+command+" ") && !strings.Contains(shared, "+"+command+"\n") {
				require.Contains(t, p.commands(), command, name)
			}
		}
	}
}
