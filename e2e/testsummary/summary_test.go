package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// events makes the JSON of lines "action package test [output or server]"; a dash is an empty
// field.
func events(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		fields := strings.SplitN(line, " ", 4)
		for len(fields) < 4 {
			fields = append(fields, "-")
		}
		for i := range fields {
			if fields[i] == "-" {
				fields[i] = ""
			}
		}
		e := map[string]string{"Action": fields[0], "Package": fields[1], "Test": fields[2]}
		switch fields[0] {
		case "output":
			e["Output"] = fields[3] + "\n"
		case "attr":
			e["Key"], e["Value"] = tier.Attribute, fields[3]
		}
		j, err := json.Marshal(e)
		if err != nil {
			panic(err)
		}
		b.Write(append(j, '\n'))
	}
	return b.String()
}

func summarize(ci, in string, args ...string) (code int, out string) {
	var o bytes.Buffer
	env := func(name string) string {
		if name == "CI" {
			return ci
		}
		return ""
	}
	code = run(append([]string{"-heartbeat", "0"}, args...), env, printing(in), &o, &o)
	return code, o.String()
}

// printing is a go test that prints one text after the other, the last one again and again.
func printing(texts ...string) tester {
	return func(_ []string, _ io.Writer, read func(io.Reader) error) error {
		text := texts[0]
		if len(texts) > 1 {
			texts = texts[1:]
		}
		return read(strings.NewReader(text))
	}
}

// row returns the numbers of a row of the table.
func row(t *testing.T, out, what string) string {
	t.Helper()
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, what+" "); ok {
			return strings.Join(strings.Fields(rest), " ")
		}
	}
	t.Fatalf("no row %q in:\n%s", what, out)
	return ""
}

func TestCountsTheServersThatATestHasMet(t *testing.T) {
	t.Parallel()
	code, out := summarize("true", events(
		"run p TestGroup", "run p TestGroup/kafka", "attr p TestGroup/kafka kafka", "run p TestGroup/kafka/window_1", "run p TestGroup/kafka/window_256",
		"run p TestGroup/kfake", "attr p TestGroup/kfake embedded",
		"pass p TestGroup/kafka/window_1", "pass p TestGroup/kafka/window_256", "pass p TestGroup/kafka", "pass p TestGroup/kfake", "pass p TestGroup",
		"run p TestPlain", "pass p TestPlain",
		"run p TestPoll/redis", "attr p TestPoll/redis redis", "pass p TestPoll/redis",
		"run p TestPoll/valkey", "attr p TestPoll/valkey valkey", "pass p TestPoll/valkey",
		"run p TestNothingLost", "attr p TestNothingLost kafka", "attr p TestNothingLost redis", "attr p TestNothingLost redis", "attr p TestNothingLost postgres",
		"pass p TestNothingLost",
		"run p TestNamed/redis", "pass p TestNamed/redis",
		"output p - ok  \tp\t1.2s", "pass p -",
		"output q - ?   \tq\t[no test files]", "skip q -",
	), "-want", "kafka,redis,valkey,postgres")
	require.Zero(t, code, out)
	require.Contains(t, out, "ok  \tp\t1.2s\n")
	require.Contains(t, out, "?   \tq\t[no test files]\n")
	require.Equal(t, "8 8 0 0", row(t, out, "all"), "leaves only")
	require.Equal(t, "3 3 0 0", row(t, out, "on real Kafka"), "two windows of a test that met Kafka, and a scenario")
	require.Equal(t, "2 2 0 0", row(t, out, "on real Redis"), "a name is not enough, and a server counts once per test")
	require.Equal(t, "1 1 0 0", row(t, out, "on real Valkey"))
	require.Equal(t, "1 1 0 0", row(t, out, "on real PostgreSQL"))
	require.Equal(t, "1 1 0 0", row(t, out, "embedded (kfake, miniredis, SQLite)"))
}

func TestPrintsTheSlowestTen(t *testing.T) {
	t.Parallel()
	var in strings.Builder
	for i := range 12 {
		fmt.Fprintf(&in, `{"Action":"pass","Package":"p","Test":"Test%d","Elapsed":%d.25}`+"\n", i, i)
	}
	in.WriteString(`{"Action":"attr","Package":"p","Test":"TestQueue","Key":"millrace.waited","Value":"1m20s"}` + "\n")
	in.WriteString(`{"Action":"pass","Package":"p","Test":"TestQueue","Elapsed":90.5}` + "\n")
	_, out := summarize("", in.String()+events("pass p -"))
	_, list, found := strings.Cut(out, "slowest\n")
	require.True(t, found)
	require.True(t, strings.HasPrefix(list, "   11.3s p Test11\n   10.5s p TestQueue\n   10.3s p Test10\n"), list)
	require.Contains(t, list, "p Test3\n")
	require.NotContains(t, list, "p Test2\n")
}

func TestAFailedTestRunsOnceMore(t *testing.T) {
	t.Parallel()
	failed := func(names ...string) string {
		lines := []string{}
		for _, name := range names {
			lines = append(lines, "run p "+name, "attr p "+name+" redis", "fail p "+name)
		}
		return events(append(lines, "fail p -")...)
	}
	passes, nothing := events("run p TestA", "pass p TestA", "pass p -"), events("pass p -")
	race := events("run p TestA", "output p TestA testing.go:1: race detected during execution of test", "fail p TestA", "fail p -")
	leak := events("run p TestA", "pass p TestA", "output p - goleak", "fail p -")
	for name, c := range map[string]struct {
		runs  []string
		code  int
		flaky string
		calls int
	}{
		"and passes":                   {[]string{failed("TestA"), passes}, 0, "  p TestA\n", 2},
		"and fails again":              {[]string{failed("TestA"), failed("TestA")}, 1, "", 2},
		"and did not run":              {[]string{failed("TestA"), nothing}, 1, "", 2},
		"and its package fails":        {[]string{failed("TestA"), leak}, 1, "", 2},
		"one of two fails again":       {[]string{failed("TestA", "TestB"), passes, failed("TestB")}, 1, "  p TestA\n", 3},
		"three are flaky":              {[]string{failed("TestA", "TestB", "TestC"), passes}, 0, "  p TestA\n  p TestB\n  p TestC\n", 4},
		"not if there are four":        {[]string{failed("TestA", "TestB", "TestC", "TestD"), passes}, 1, "", 1},
		"not if only a package failed": {[]string{leak, passes}, 1, "", 1},
		"not after a data race":        {[]string{race, passes}, 1, "", 1},
		"not if a test never ended":    {[]string{events("run p TestA", "fail p -"), passes}, 1, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			var calls [][]string
			next := printing(c.runs...)
			test := func(args []string, errOut io.Writer, read func(io.Reader) error) error {
				calls = append(calls, args)
				return next(args, errOut, read)
			}
			file := filepath.Join(t.TempDir(), "flaky.txt")
			code := run([]string{"-heartbeat", "0", "-rerun", "3", "-flaky", file, "-packages", "a b", "--", "-count=1"},
				func(string) string { return "" }, test, &out, &out)
			require.Equal(t, c.code, code, out.String())
			require.Len(t, calls, c.calls)
			require.Equal(t, []string{"-count=1", "a", "b"}, calls[0])
			if len(calls) > 1 {
				require.Equal(t, []string{"-count=1", "-count=1", "-run=^TestA$", "p"}, calls[1])
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, c.flaky, string(text))
			require.Equal(t, c.flaky != "", strings.Contains(out.String(), "\nflaky: "))
			if c.code == 0 {
				require.Contains(t, row(t, out.String(), "on real Redis"), " 0 0", "what is flaky has passed")
			}
		})
	}
	require.Equal(t, `^TestA$/^a\.b$`, pattern("TestA/a.b"))
}

func TestFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in, want string
		absent   string
		failed   string // the row of all
	}{
		"a test": {
			in: events("run p TestA", "output p TestA === RUN   TestA", "output p TestA why it failed", "fail p TestA", "run p TestB", "output p TestB chatter", "pass p TestB",
				"output p - FAIL\tp\t0.1s", "fail p -"),
			want: "why it failed", absent: "chatter", failed: "2 1 1 0",
		},
		"a subtest counts once": {
			in:   events("run p TestA", "run p TestA/redis", "output p TestA/redis why", "fail p TestA/redis", "fail p TestA", "fail p -"),
			want: "FAILED:\n  p TestA/redis\n", failed: "1 0 1 0",
		},
		"a parent whose subtests passed": {
			in:   events("run p TestA", "run p TestA/x", "pass p TestA/x", "output p TestA leak", "fail p TestA", "fail p -"),
			want: "leak", failed: "2 1 1 0",
		},
		"a build": {
			in:   `{"ImportPath":"p","Action":"build-output","Output":"p.go:1: undefined: x\n"}` + "\n" + `{"ImportPath":"p","Action":"build-fail"}` + "\n" + events("output p - FAIL\tp [build failed]", "fail p -"),
			want: "p.go:1: undefined: x", failed: "0 0 0 0",
		},
		"a package without a failed test": {
			in:   events("run p TestA", "pass p TestA", "output p - goleak: found unexpected goroutines", "output p - FAIL\tp\t0.1s", "fail p -"),
			want: "found unexpected goroutines", failed: "1 1 0 0",
		},
		"a test that never ended": {
			in:   events("run p TestA", "output p TestA panic: test timed out", "output p - FAIL\tp\t60s", "fail p -"),
			want: "test timed out", failed: "1 0 1 0",
		},
		"a stream that was cut off": {
			in:   events("run p TestA", "pass p TestA"),
			want: "p (its result never came)", failed: "1 1 0 0",
		},
		"nothing at all": {in: "", want: "no package was tested", failed: "0 0 0 0"},
		"output of go itself": {
			in:   "go: cannot find main module\n",
			want: "go: cannot find main module", failed: "0 0 0 0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out := summarize("", c.in)
			require.Equal(t, 1, code, out)
			require.Contains(t, out, c.want)
			require.Contains(t, out, "FAILED:")
			require.Equal(t, c.failed, row(t, out, "all"))
			if c.absent != "" {
				require.NotContains(t, out, c.absent)
			}
		})
	}
}

func TestSkips(t *testing.T) {
	t.Parallel()
	in := events(
		"run p TestA/kafka", "attr p TestA/kafka kafka", "output p TestA/kafka === RUN   TestA/kafka", "output p TestA/kafka     a_test.go:12: MILLRACE_TEST_KAFKA is not set", "skip p TestA/kafka",
		"run p TestB", "output p TestB     log.go:9: all messages received in bulk read", "output p TestB     b_test.go:3: writes 100 MB", "skip p TestB",
		"output p - ok  \tp\t1s", "pass p -")
	code, out := summarize("", in, "-want", "kafka")
	require.Zero(t, code, "a laptop may have no servers")
	require.Equal(t, "0 0 0 2", row(t, out, "all"))
	require.Equal(t, "0 0 0 1", row(t, out, "on real Kafka"))
	require.Contains(t, out, "      1  MILLRACE_TEST_KAFKA is not set\n")
	require.Contains(t, out, "      1  writes 100 MB\n")

	code, out = summarize("true", in)
	require.Equal(t, 1, code, "in CI no server may be missing")
	require.Contains(t, out, "p TestA/kafka was skipped")
	require.NotContains(t, out, "p TestB was skipped", "other reasons are fine")
}

func TestWant(t *testing.T) {
	t.Parallel()
	in := events("run p TestA", "attr p TestA redis", "pass p TestA", "pass p -")
	code, out := summarize("true", in, "-want", "redis,valkey")
	require.Equal(t, 1, code)
	require.Contains(t, out, "no test ran on real Valkey")
	require.NotContains(t, out, "no test ran on real Redis")
	code, _ = summarize("true", in, "-want", "oracle")
	require.Equal(t, 2, code)
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newSummary(&out)
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return began.Add(time.Minute) }
	for _, line := range []string{
		`{"Time":"2026-01-01T00:00:00Z","Action":"run","Package":"p","Test":"TestA"}`,
		`{"Time":"2026-01-01T00:00:01Z","Action":"run","Package":"p","Test":"TestA/slow"}`,
		`{"Time":"2026-01-01T00:00:59Z","Action":"run","Package":"p","Test":"TestQuick"}`,
		`{"Time":"2026-01-01T00:00:01Z","Action":"run","Package":"p","Test":"TestInLine"}`,
		`{"Time":"2026-01-01T00:00:01Z","Action":"pause","Package":"p","Test":"TestInLine"}`,
		`{"Time":"2026-01-01T00:00:01Z","Action":"run","Package":"p","Test":"TestItsTurn"}`,
		`{"Time":"2026-01-01T00:00:01Z","Action":"pause","Package":"p","Test":"TestItsTurn"}`,
		`{"Time":"2026-01-01T00:00:20Z","Action":"cont","Package":"p","Test":"TestItsTurn"}`,
	} {
		s.line(line)
	}
	s.printRunning(30 * time.Second)
	require.Equal(t, "...  \tp TestA/slow has been running for 59s\n...  \tp TestItsTurn has been running for 40s\n", out.String())
}

// TestWithGo runs the real go test on a module with every kind of result.
func TestWithGo(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"go.mod":       "module m\n\ngo 1.26\n",
		"a/a_test.go":  "package a\nimport \"testing\"\nfunc TestGood(t *testing.T) { t.Attr(\"millrace.server\", \"redis\") }\n",
		"b/b_test.go":  "package b\nimport \"testing\"\nfunc TestBad(t *testing.T) { t.Attr(\"millrace.server\", \"kafka\"); t.Run(\"sub\", func(t *testing.T) { t.Error(\"the reason\") }) }\nfunc TestSkipped(t *testing.T) { t.Skip(\"not today\") }\n",
		"c/c_test.go":  "package c\nimport \"testing\"\nfunc TestPanics(*testing.T) { panic(\"boom\") }\n",
		"d/d_test.go":  "package d\nvar x int = \"no int\"\n",
		"e/nothing.go": "package e\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOWORK", "off")
	var o, errOut bytes.Buffer
	code := run([]string{"-heartbeat", "0"}, func(string) string { return "" }, goTest, &o, &errOut)
	out := o.String()
	require.Equal(t, 1, code)
	require.Equal(t, "3 1 2 1", row(t, out, "all"), out)
	require.Equal(t, "1 1 0 0", row(t, out, "on real Redis"))
	require.Equal(t, "1 0 1 0", row(t, out, "on real Kafka"))
	for _, want := range []string{"ok  \tm/a\t", "FAIL\tm/b\t", "the reason", "boom", "no int", "[no test files]", "not today", "  m/c TestPanics\n", "  m/d\n"} {
		require.Contains(t, out, want)
	}
}
