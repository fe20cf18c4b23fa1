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

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, args ...string) (lines *bufio.Scanner, end func() error) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		cmd := Command()
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
		require.Equal(t, 200, caller{first.URL, 5 * time.Second}.point(1, 1, 5).status)
		second := next()
		// Both are counted at different moments.
		for second.Summary.Charged == 0 || second.Summary.Requests["charged"] == 0 {
			require.Equal(t, "summary", second.Event)
			second = next()
		}
		require.Equal(t, 1, second.Summary.Charged)
		ended := make(chan error, 1)
		go func() { ended <- end() }()
		last := next()
		require.Equal(t, "stopped", last.Event, "nothing happened meanwhile, so nothing was printed")
		require.Equal(t, 1, last.Summary.Charged)
		require.False(t, lines.Scan())
		require.NoError(t, <-ended)
	})
	t.Run("text", func(t *testing.T) {
		t.Parallel()
		lines, end := run(t)
		require.True(t, lines.Scan())
		require.Regexp(t, `^money api listening on http://127\.0\.0\.1:\d+ \(journal in memory\)$`, lines.Text())
		ended := make(chan error, 1)
		go func() { ended <- end() }()
		require.True(t, lines.Scan())
		require.Equal(t, "stopped: charged 0, double charged 0, overlapping calls 0, calls after the answer paid 0; requests: none", lines.Text())
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
			cmd := Command()
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
	s := Summary{Charged: 3, Executions: 5, DoubleCharged: 2, Overlaps: 4, AfterPaid: 6, Requests: map[string]uint64{"charged": 5, "failed": 1, "reset": 0}}
	require.Equal(t, "charged 3 in 5 executions, double charged 2, overlapping calls 4, calls after the answer paid 6; requests: charged 5 failed 1", s.String())
}
