package simulator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, args ...string) (lines *bufio.Scanner, end func() error) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		cmd := Command(&cobra.Command{Use: "billing"}, "billing api", func() (API, error) { return invoices(), nil })
		cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0", "--interval", "5ms"}, args...))
		cmd.SetOut(w)
		ended := make(chan error, 1)
		go func() {
			err := cmd.ExecuteContext(ctx)
			w.Close()
			ended <- err
		}()
		return bufio.NewScanner(r), func() error { cancel(); return <-ended }
	}
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "journal")
		lines, end := run(t, "--json", "--journal", path, "--latency", "1ms", "--reject-rate", "0")
		next := func() (e event) {
			require.True(t, lines.Scan())
			require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
			return e
		}
		first := next()
		require.Equal(t, "listening", first.Event)
		require.Equal(t, path, first.Journal)
		require.Equal(t, 200, caller{first.URL, 5 * time.Second}.ask(1, 1, 5).status)
		second := next()
		// Both are counted at different moments.
		for second.Summary.Executed == 0 || second.Summary.Requests["executed"] == 0 {
			require.Equal(t, "summary", second.Event)
			second = next()
		}
		require.Equal(t, 1, second.Summary.Executed)
		ended := make(chan error, 1)
		go func() { ended <- end() }()
		last := next()
		require.Equal(t, "stopped", last.Event, "nothing happened meanwhile, so nothing was printed")
		require.Equal(t, 1, last.Summary.Executed)
		require.False(t, lines.Scan())
		require.NoError(t, <-ended)
	})
	t.Run("text", func(t *testing.T) {
		t.Parallel()
		lines, end := run(t)
		require.True(t, lines.Scan())
		require.Regexp(t, `^billing api listening on http://127\.0\.0\.1:\d+ \(journal in memory\)$`, lines.Text())
		ended := make(chan error, 1)
		go func() { ended <- end() }()
		require.True(t, lines.Scan())
		require.Equal(t, "stopped: executed 0, executed twice 0, overlapping calls 0, calls after the good answer 0; requests: none", lines.Text())
		require.False(t, lines.Scan())
		require.NoError(t, <-ended)
	})
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a rate":      {[]string{"--fail-rate", "2"}, "fail_rate must be between 0 and 1"},
		"an interval": {[]string{"--interval", "0s"}, "--interval"},
		"an argument": {[]string{"x"}, "unknown command"},
		"an address":  {[]string{"--listen", "256.0.0.1:1"}, "--listen: listen tcp"},
		"a port":      {[]string{"--listen", "nonsense"}, "missing port"},
		"a token":     {[]string{"--token", "file:/does/not/exist"}, "/does/not/exist"},
	} {
		t.Run("wrong "+name, func(t *testing.T) {
			t.Parallel()
			cmd := Command(&cobra.Command{Use: "billing"}, "billing api", func() (API, error) { return invoices(), nil })
			cmd.SetArgs(c.args)
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			err := cmd.ExecuteContext(t.Context())
			require.ErrorContains(t, err, c.want)
			if name == "an argument" || name == "a token" {
				return // an error of cobra, before the command
			}
			usage, ok := errors.AsType[*app.ExitError](err)
			require.True(t, ok, err)
			require.Equal(t, app.ExitUsage, usage.Code)
		})
	}
}

func TestSummaryOnOneLine(t *testing.T) {
	t.Parallel()
	s := Summary{Executed: 3, Executions: 5, Doubled: 2, Overlaps: 4, AfterDone: 6, Requests: map[string]uint64{"executed": 5, "failed": 1, "reset": 0}}
	require.Equal(t, "executed 3 in 5 executions, executed twice 2, overlapping calls 4, calls after the good answer 6; requests: executed 5 failed 1", s.String())
}
