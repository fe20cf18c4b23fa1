package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/terminaltest"
)

func TestTheLogOnATerminalIsForPeople(t *testing.T) {
	t.Parallel()
	const json, text = `^\{"time":"\d{4}-.*"level":"INFO","msg":"waiting","at_most":"15s"\}\r\n$`, `^time=\d{4}-\S+ level=INFO msg=waiting at_most=15s\r\n$`
	const plain, colored = `^\d\d:\d\d:\d\d INFO  waiting at_most=15s\r\n$`, "^\\d\\d:\\d\\d:\\d\\d \x1b\\[32mINFO \x1b\\[0m waiting at_most=15s\r\n$"
	for name, c := range map[string]struct {
		format  string
		environ []string
		want    string
	}{
		"a terminal":                  {"auto", []string{"TERM=xterm-256color"}, colored},
		"a terminal of unknown kind":  {"auto", nil, colored},
		"colors are not wanted":       {"auto", []string{"TERM=xterm", "NO_COLOR=1"}, plain},
		"an empty variable is none":   {"auto", []string{"NO_COLOR="}, colored},
		"a terminal without colors":   {"auto", []string{"TERM=dumb"}, plain},
		"a format for programs, JSON": {"json", nil, json},
		"a format for programs, text": {"text", nil, text},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			person, screen := terminaltest.Open(t)
			logger, _ := newLogger(screen, LogSettings{Format: c.format}, c.environ)
			logger.Info("waiting", slog.Duration("at_most", 15*time.Second))
			line, err := person.ReadString('\n')
			require.NoError(t, err)
			require.Regexp(t, c.want, line)
		})
	}
}

// What is no terminal gets the format for programs, whatever the variables say about colors.
func TestTheLogInAFileIsForPrograms(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(name)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	logger, _ := newLogger(file, LogSettings{Format: "auto"}, []string{"TERM=xterm", "CLICOLOR_FORCE=1"})
	logger.Info("waiting")
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Regexp(t, `^\{"time":"\d{4}-.*"level":"INFO","msg":"waiting"\}\n$`, string(got))
}
