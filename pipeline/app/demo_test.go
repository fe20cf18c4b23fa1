package app

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

type needy struct {
	name  string
	needs []string
}

func (n needy) Name() string                      { return n.name }
func (n needy) Register(*pipeline.Registry) error { return nil }
func (n needy) Needs() []string                   { return n.needs }

// A handler that was added to the binary must not end a demo that needs no Kafka.
func TestADemoSwitchesOffWhatNeedsASwitchedOffPlugin(t *testing.T) {
	t.Parallel()
	h := &Host{opts: Options{Plugins: []pipeline.Plugin{
		needy{"reports", []string{"greetings"}}, needy{"greetings", []string{"redis", "kafka"}}, needy{"room", []string{"redis"}}, needy{"kafka", nil}, needy{"redis", nil},
	}}}
	require.Equal(t, []string{"kafka", "greetings", "reports"}, h.withDependents([]string{"kafka"}))
	require.Equal(t, []string{"none"}, h.withDependents([]string{"none"}))
}

// What a demo tells a person to try works in the shell that has called it.
func TestAProgramNamesTheCommandThatCalledIt(t *testing.T) { //nolint:paralleltest // it has a working directory of its own
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll("cmd/mill", 0o700))
	module := debug.Module{Path: "example.com/mill"}
	here := &debug.BuildInfo{Path: "example.com/mill/cmd/mill", Main: module}
	kept := "/home/ann/.cache/go-build/2e/" + strings.Repeat("2e", 32) + "-d/mill"
	for name, tt := range map[string]struct {
		path string
		info *debug.BuildInfo
		want string
	}{
		"on the path":               {"mill", here, "mill"},
		"a relative path":           {"bin/mill", here, "bin/mill"},
		"an absolute path":          {"/opt/exe/mill", here, "/opt/exe/mill"},
		"go run":                    {"/tmp/go-build582814264/b001/exe/mill", here, "go run ./cmd/mill"},
		"go run on Windows":         {`C:\Temp\go-build58\b001\exe\mill.exe`, here, "go run ./cmd/mill"},
		"go run again":              {kept, here, "go run ./cmd/mill"},
		"go run in the root":        {kept, &debug.BuildInfo{Path: "example.com/mill", Main: module}, "go run ."},
		"go run in another folder":  {kept, &debug.BuildInfo{Path: "example.com/mill/cmd/other", Main: module}, "go run example.com/mill/cmd/other"},
		"go run of files":           {"/tmp/go-build23/b001/exe/main", &debug.BuildInfo{Path: "command-line-arguments"}, "mill"},
		"without build information": {kept, nil, "mill"},
	} {
		require.Equal(t, tt.want, calledAs(tt.path, "mill", tt.info), name)
	}
}
