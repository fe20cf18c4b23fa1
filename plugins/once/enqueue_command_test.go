package once_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

func fileOf(t *testing.T, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

// Each line of a file has its effect once, however often the file is given.
func TestAFileOfRequests(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Always, nil)
		w.Start(p)
		o := operator{t, w}
		const n = 600 // more than two transactions
		lines := []string{"\xef\xbb\xbfnumber, customer ,cents"}
		for i := range n {
			lines = append(lines, fmt.Sprintf(`"%05d","a, b",%d`, i, i+1))
		}
		path := fileOf(t, "orders.csv", lines...)
		enqueue := func(want int, args ...string) (stdout, stderr string) {
			t.Helper()
			stdout, stderr, code := commandLine(t, w, nil, append([]string{"once", "enqueue", "--kind", "invoice", "--number", "cents"}, args...)...)
			require.Equal(t, want, code, stdout+stderr)
			return stdout, stderr
		}
		stdout, _ := enqueue(app.ExitOK, "--file", path, "--dry-run")
		require.Equal(t, "600 lines checked, and nothing enqueued. The first effect is invoice:a,%20b:00000.\n", stdout)
		_, err := p.effects.State(t.Context(), once.Key{Group: "a, b", ID: "00000"})
		require.Error(t, err)
		_, stderr := enqueue(app.ExitUsage, "--file", path)
		require.Contains(t, stderr, "--why REASON required, for the audit")

		stdout, stderr = enqueue(app.ExitOK, "--file", path, "--why", "ticket 9", "--who", "ann")
		require.Equal(t, "600 lines: 600 new, 0 known, 0 of a cancelled group, 0 that ask for something else, 0 refused.\n", stdout)
		require.Contains(t, stderr, "enqueued")
		for _, id := range []string{"00000", "00599"} {
			require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, once.Key{Group: "a, b", ID: id}).State)
		}
		shown, err := json.Marshal(o.must("once explain", operate.Input{"kind": {"invoice"}, "group": {"a, b"}, "id": {"00599"}}).Value)
		require.NoError(t, err)
		require.Contains(t, string(shown), "orders.csv, line 601, enqueued by ann")
		require.Contains(t, string(shown), `\"cents\":600`, "a number, and the text before it keeps its zeros")
		audit, err := w.Once.AuditLogs()[0].Recent(t.Context(), operate.AuditFilter{}, 10)
		require.NoError(t, err)
		require.Len(t, audit.Changes, 1)
		require.Equal(t, "enqueue ann ticket 9 invoice 600 lines of "+path, strings.Join([]string{
			audit.Changes[0].Action, audit.Changes[0].Who, audit.Changes[0].Why, audit.Changes[0].Subject, strings.TrimSuffix(audit.Changes[0].Detail, " (database role postgres)"),
		}, " "))

		o.must("once cancel", operate.Input{"kind": {"invoice"}, "group": {"gone"}, "future": {"true"}})
		again := fileOf(t, "again.ndjson", `{"cents":1,"customer":"a, b","number":"00000"}`, "", `{"customer":"a, b","number":"00001","cents":9}`,
			`{"customer":"gone","number":"1"}`, `{"customer":"a, b","number":"new"}`, `{"customer":"a, b","number":"00002","cents":9}`)
		stdout, _, code := commandLine(t, w, nil, "once", "enqueue", "--kind", "invoice", "--file", again, "--why", "again", "--json")
		require.Equal(t, app.ExitBad, code, stdout)
		var r struct {
			Fresh, Known, Cancelled, Conflicts, Refused, Lines int
			Examples                                           []struct {
				Line           int
				Effect, Reason string
			}
		}
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		require.Equal(t, []int{5, 1, 1, 1, 2, 0}, []int{r.Lines, r.Fresh, r.Known, r.Cancelled, r.Conflicts, r.Refused})
		require.Len(t, r.Examples, 3)
		require.Equal(t, 3, r.Examples[0].Line)
		require.Contains(t, r.Examples[0].Reason, "something else was asked for")
	})
}

// A file with a line that the kind can't accept asks for nothing, and the error names the line.
func TestAFileThatCannotBeEnqueued(t *testing.T) {
	t.Parallel()
	w := oncetest.On(t, "sqlite:"+filepath.Join(t.TempDir(), "once.db"))
	w.Start(newInvoices(w.Once, once.Always, nil))
	const header = "customer,number,cents"
	for name, c := range map[string]struct {
		lines []string
		flags []string
		want  []string
	}{
		"no key":         {lines: []string{header, "acme,1,5", "acme,,5", "acme,3,x"}, want: []string{"line 3: ", "line 4: "}},
		"an empty file":  {want: []string{"line 1: want a header"}},
		"a header alone": {lines: []string{header}, want: []string{"line 1: want a record per line"}},
		"a number that is a text": {lines: []string{header, "acme,1,five"}, flags: []string{"--number", "cents"},
			want: []string{`line 2: want a number in column cents, got "five"`}},
		"an object in place of a number": {lines: []string{header, `acme,1,{}`}, flags: []string{"--number", "cents"}, want: []string{"line 2: want a number"}},
		"a column that is none":          {lines: []string{header, "acme,1,5"}, flags: []string{"--number", "cent"}, want: []string{"line 1: --number cent is no column, the header has customer, number, cents"}},
		"a column twice":                 {lines: []string{"customer,number,number"}, want: []string{"line 1: want each column once, got number twice"}},
		"a column without a name":        {lines: []string{"customer,,number"}, want: []string{"line 1: want the name of a field"}},
		"a cell too many":                {lines: []string{"customer,number", "acme,1", "acme,2,3"}, want: []string{"line 3: want 2 cells, as in the header, got 3"}},
		"a quote":                        {lines: []string{"customer,number", `acme,a"b`}, want: []string{"line 2: want a line of CSV"}},
		"bytes that are no text":         {lines: []string{"customer,number", "acme,\xff"}, want: []string{"line 2: want UTF-8 in column number"}},
		"no JSON":                        {lines: []string{`{"customer":"acme","number":"1"}`, `{"customer":`}, want: []string{"line 2: want one JSON object"}},
		"two objects":                    {lines: []string{`{"customer":"acme","number":"1"}{}`}, want: []string{"line 1: want one JSON object"}},
		"columns of JSON":                {lines: []string{`{"customer":"acme","number":"1"}`}, flags: []string{"--number", "cents"}, want: []string{"line 1: --number is for the columns of CSV"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := fileOf(t, "orders", c.lines...)
			if len(c.lines) == 0 {
				require.NoError(t, os.Truncate(path, 0))
			}
			args := append([]string{"once", "enqueue", "--kind", "invoice", "--file", path, "--why", "w"}, c.flags...)
			stdout, stderr, code := commandLine(t, w, nil, args...)
			require.Equal(t, app.ExitUsage, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, "nothing was enqueued")
			for _, want := range c.want {
				require.Contains(t, stderr, path+", "+want)
			}
		})
	}
	_, err := w.Once.StateOf(t.Context(), "invoice", once.Key{Group: "acme", ID: "1"})
	require.Error(t, err)
	for want, args := range map[string][]string{
		"--kind and --file are required": {"--kind", "invoice"},
		"no such file":                   {"--kind", "invoice", "--file", "absent.csv"},
		"must be a file, because it is":  {"--kind", "invoice", "--file", t.TempDir()},
		"this program has invoice":       {"--kind", "bill", "--file", fileOf(t, "x", `{"a":1}`), "--why", "w"},
		"--why REASON required":          {"--kind", "invoice", "--file", fileOf(t, "x", `{"a":1}`)},
	} {
		_, stderr, code := commandLine(t, w, nil, append([]string{"once", "enqueue"}, args...)...)
		require.Equal(t, app.ExitUsage, code, stderr)
		require.Contains(t, stderr, want)
	}
}

// No entry of a stream names what the command has accepted, so the ledger has it at once, and not when a grace has ended.
func TestAFileForAKindWithStreams(t *testing.T) {
	t.Parallel()
	eachSpreading(t, func(t *testing.T, s *spreading) {
		_, p := s.start(func(_ *once.Kind[invoice], c *once.KindConfig) { c.PollInterval = 10 * millisecond })
		_, _, plugins := s.instance(nil)
		config := fileOf(t, "mill.yaml", fmt.Sprintf("log: {level: error}\nplugins: {once: {ledger: {dsn: %q}}}", s.dsn))
		var out bytes.Buffer
		code := app.Main(t.Context(), app.Options{
			Name: "mill", Plugins: plugins, Environ: []string{}, Stdout: &out, Stderr: &out,
			Args: []string{"once", "enqueue", "--kind", "invoice", "--file", fileOf(t, "one.ndjson", one.payload()), "--why", "w", "--config", config},
		})
		require.Equal(t, app.ExitOK, code, out.String())
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
	})
}
