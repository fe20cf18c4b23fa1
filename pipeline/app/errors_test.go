package app_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// examine is what follows the error of a server that does not answer.
func examine(doctor string) string {
	return "Start what does not answer, create what is missing, or correct address, credentials and TLS in the settings.\n" +
		"Run '" + doctor + "' to have every server examined.\n"
}

// TestErrorsOfServers: what failed is the first line, each cause has another, and what to do is the last.
func TestErrorsOfServers(t *testing.T) {
	t.Parallel()
	refused := errors.Join(errors.New("dial a:9092: refused"), errors.New("dial b:9092: refused"))
	away := fmt.Errorf("%w: no broker at a:9092,b:9092 answered: %w", pipeline.ErrUnavailable, refused)
	causes := "server unavailable: no broker at a:9092,b:9092 answered:\n  dial a:9092: refused\n  dial b:9092: refused\n"
	file := filepath.Join(t.TempDir(), "my.yaml")
	require.NoError(t, os.WriteFile(file, []byte("log: {level: error}\n"), 0o600))

	waits := func(ctx context.Context) error {
		<-ctx.Done()
		return away
	}
	at := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for name, tc := range map[string]struct {
		start func(context.Context) error
		args  []string
		code  int
		want  string
	}{
		"run":                      {at(away), []string{"run"}, app.ExitUnavailable, "mill: start toy: " + causes + examine("mill doctor")},
		"run, with its profile":    {at(away), []string{"run", "--profile", "local"}, app.ExitUnavailable, "mill: start toy: " + causes + examine("mill doctor --profile local")},
		"run, with its file":       {at(away), []string{"run", "--config", file}, app.ExitUnavailable, "mill: start toy: " + causes + examine("mill doctor --config "+file)},
		"a command of a plugin":    {at(away), []string{"do"}, app.ExitUnavailable, "mill: start toy: " + causes + examine("mill doctor")},
		"a command that waited":    {waits, []string{"do"}, app.ExitUnavailable, "mill: stopped waiting after 50ms (command_wait): start toy: " + causes + examine("mill doctor")},
		"without settings":         {nil, []string{"bare"}, app.ExitUnavailable, "mill: " + causes},
		"the start and the stop":   {at(errors.Join(errors.New("a: full"), away)), []string{"run"}, app.ExitUnavailable, "mill: start toy:\n  a: full\n  " + strings.ReplaceAll(causes, "\n  ", "\n    ") + examine("mill doctor")},
		"no server is away":        {at(fmt.Errorf("look: %w", errors.Join(errors.New("a: full"), errors.New("b: full")))), []string{"run"}, app.ExitBad, "mill: start toy: look:\n  a: full\n  b: full\n"},
		"no folder for files":      {nil, []string{"temporary"}, app.ExitUsage, "mill: demo: mkdir " + os.TempDir() + "/mill-1: read-only file system\nMount a folder that this process can write at " + os.TempDir() + ", or name another one with TMPDIR, for temporary files.\n"},
		"a server that is foreign": {nil, []string{"foreign"}, app.ExitUnavailable, "mill: the dam is closed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			p.start = tc.start
			p.commands = func(h *app.Host) []*cobra.Command {
				return []*cobra.Command{
					h.ServiceFlags(&cobra.Command{Use: "do", RunE: func(cmd *cobra.Command, _ []string) error {
						return h.Services(cmd.Context(), cmd, app.ServicesOptions{Plugins: []string{"toy"}}, func(context.Context, *app.Running) error { return nil })
					}}),
					{Use: "temporary", RunE: func(*cobra.Command, []string) error {
						return fmt.Errorf("demo: %w", &fs.PathError{Op: "mkdir", Path: os.TempDir() + "/mill-1", Err: syscall.EROFS})
					}},
					{Use: "bare", RunE: func(*cobra.Command, []string) error { return away }},
					h.ServiceFlags(&cobra.Command{Use: "foreign", RunE: func(*cobra.Command, []string) error { return apart{} }}),
				}
			}
			o := options(p, tc.args...)
			o.Environ = []string{"MILL__LOG__LEVEL=error", "MILL__COMMAND_WAIT=50ms"}
			r := await(t, start(t.Context(), o))
			require.Equal(t, tc.code, r.code, r.stderr)
			require.Equal(t, tc.want, r.stderr)
			require.Empty(t, r.stdout)
		})
	}
}
