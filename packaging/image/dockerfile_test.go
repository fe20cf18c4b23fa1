package main

import (
	"os"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/stretchr/testify/require"
)

// stages parses a Dockerfile as BuildKit does, with the warnings of its linter.
func stages(t *testing.T, text string) (list []instructions.Stage, warnings []string) {
	t.Helper()
	parsed, err := parser.Parse(strings.NewReader(text))
	require.NoError(t, err)
	for _, w := range parsed.Warnings {
		warnings = append(warnings, w.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, message string, _ []parser.Range) {
		warnings = append(warnings, rule+": "+message)
	}})
	list, _, err = instructions.Parse(parsed.AST, lint)
	require.NoError(t, err)
	return list, warnings
}

// configured is what the instructions of a stage make of the configuration of an empty image.
func configured(t *testing.T, stage instructions.Stage) v1.Config {
	t.Helper()
	config := v1.Config{Labels: map[string]string{}}
	for _, command := range stage.Commands {
		switch c := command.(type) {
		case *instructions.CopyCommand: // files
		case *instructions.LabelCommand:
			for _, l := range c.Labels {
				config.Labels[l.Key] = strings.Trim(l.Value, `"`)
			}
		case *instructions.EnvCommand:
			for _, e := range c.Env {
				config.Env = append(config.Env, e.Key+"="+e.Value)
			}
		case *instructions.UserCommand:
			config.User = c.User
		case *instructions.StopSignalCommand:
			config.StopSignal = c.Signal
		case *instructions.EntrypointCommand:
			require.False(t, c.PrependShell, "the image has no shell")
			config.Entrypoint = c.CmdLine
		case *instructions.CmdCommand:
			require.False(t, c.PrependShell, "the image has no shell")
			config.Cmd = c.CmdLine
		default:
			require.Fail(t, "another instruction", "%s", command.Name())
		}
	}
	return config
}

func TestTheDockerfileBuildsTheSameImage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	list, warnings := stages(t, string(text))
	require.Empty(t, warnings)
	require.Len(t, list, 2)

	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(mod), "\ntoolchain go")
	toolchain, _, _ := strings.Cut(rest, "\n")
	require.Equal(t, "golang:"+toolchain, list[0].BaseName, "the toolchain of go.mod")
	require.Equal(t, "$BUILDPLATFORM", list[0].Platform, "it compiles for other platforms without emulation")

	require.Equal(t, "scratch", list[1].BaseName)
	files, ok := list[1].Commands[0].(*instructions.CopyCommand)
	require.True(t, ok)
	require.Equal(t, "build", files.From)
	require.Equal(t, []string{"/dist/root"}, files.SourcePaths)
	require.Equal(t, "/", files.DestPath)

	base, err := layerOf(baseFiles())
	require.NoError(t, err)
	img, err := makeImage(base, binary{})
	require.NoError(t, err)
	want, err := img.ConfigFile()
	require.NoError(t, err)
	delete(want.Config.Labels, "org.opencontainers.image.version") // no instruction can read it
	require.Equal(t, want.Config, configured(t, list[1]))

	_, warnings = stages(t, "FROM scratch as build\n")
	require.NotEmpty(t, warnings)
}

// The ignored files are a subset of git's, because a file of the commit that is missing marks the
// version as modified.
func TestTheDockerContextHasTheWholeCheckout(t *testing.T) {
	t.Parallel()
	ignored := func(file string) (lines []string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				lines = append(lines, strings.Trim(line, "/"))
			}
		}
		return lines
	}
	require.Subset(t, ignored("../../.gitignore"), ignored("../../.dockerignore"))
	require.NotContains(t, ignored("../../.dockerignore"), ".git")
}
