package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// events makes the JSON of lines "action package test [output…]"; a dash is an empty field.
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
		if fields[0] == "output" {
			e["Output"] = fields[3] + "\n"
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
	code = run(append([]string{"-heartbeat", "0"}, args...), env, strings.NewReader(in), &o, &o)
	return code, o.String()
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

func TestCounts(t *testing.T) {
	t.Parallel()
	code, out := summarize("true", events(
		"run p TestGroup", "run p TestGroup/kafka", "run p TestGroup/kafka/window_1", "run p TestGroup/kafka/window_256", "run p TestGroup/kfake",
		"pass p TestGroup/kafka/window_1", "pass p TestGroup/kafka/window_256", "pass p TestGroup/kafka", "pass p TestGroup/kfake", "pass p TestGroup",
		"run p TestPlain", "pass p TestPlain",
		"run p TestPoll/redis", "pass p TestPoll/redis", "run p TestPoll/valkey", "pass p TestPoll/valkey", "run p TestPoll/miniredis", "pass p TestPoll/miniredis",
		"run p TestNothingLost/real", "pass p TestNothingLost/real", "run p TestNothingLost/embedded", "pass p TestNothingLost/embedded",
		"run p TestLedger/sqlite", "pass p TestLedger/sqlite",
		"run p TestKafkaIsAway/kafka_down", "pass p TestKafkaIsAway/kafka_down",
		"output p - ok  \tp\t1.2s", "pass p -",
		"output q - ?   \tq\t[no test files]", "skip q -",
	), "-want", "kafka,redis,valkey,postgres")
	require.Zero(t, code, out)
	require.Contains(t, out, "ok  \tp\t1.2s\n")
	require.Contains(t, out, "?   \tq\t[no test files]\n")
	require.Equal(t, "11 11 0 0", row(t, out, "all"), "leaves only")
	require.Equal(t, "3 3 0 0", row(t, out, "on real Kafka"), "two windows and the real home; kafka_down is no server")
	require.Equal(t, "2 2 0 0", row(t, out, "on real Redis"))
	require.Equal(t, "1 1 0 0", row(t, out, "on real Valkey"))
	require.Equal(t, "1 1 0 0", row(t, out, "on real PostgreSQL"))
	require.Equal(t, "4 4 0 0", row(t, out, "embedded (kfake, miniredis, SQLite)"))
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
			want: "its result never came", failed: "1 1 0 0",
		},
		"nothing at all": {in: "", want: "no package was tested", failed: "0 0 0 0"},
		"words of go itself": {
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
		"run p TestA/kafka", "output p TestA/kafka === RUN   TestA/kafka", "output p TestA/kafka     a_test.go:12: MILLRACE_TEST_KAFKA is not set", "skip p TestA/kafka",
		"run p TestB", "output p TestB     b_test.go:3: writes 100 MB", "skip p TestB",
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
	in := events("run p TestA/redis", "pass p TestA/redis", "pass p -")
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
	s.sayRunning(30 * time.Second)
	require.Equal(t, "...  \tp TestA/slow has been running for 59s\n...  \tp TestItsTurn has been running for 40s\n", out.String())
}

// TestWithGo runs the real go test on a module with every kind of result.
func TestWithGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"go.mod":       "module m\n\ngo 1.26\n",
		"a/a_test.go":  "package a\nimport \"testing\"\nfunc TestGood(t *testing.T) { t.Run(\"redis\", func(*testing.T) {}) }\n",
		"b/b_test.go":  "package b\nimport \"testing\"\nfunc TestBad(t *testing.T) { t.Run(\"kafka\", func(t *testing.T) { t.Error(\"the reason\") }) }\nfunc TestSkipped(t *testing.T) { t.Skip(\"not today\") }\n",
		"c/c_test.go":  "package c\nimport \"testing\"\nfunc TestPanics(*testing.T) { panic(\"boom\") }\n",
		"d/d_test.go":  "package d\nvar x int = \"no int\"\n",
		"e/nothing.go": "package e\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	cmd := exec.Command("go", "test", "-json", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	stdout, err := cmd.Output()
	require.Error(t, err, "some tests fail")
	code, out := summarize("", string(stdout))
	require.Equal(t, 1, code)
	require.Equal(t, "3 1 2 1", row(t, out, "all"), out)
	require.Equal(t, "1 1 0 0", row(t, out, "on real Redis"))
	require.Equal(t, "1 0 1 0", row(t, out, "on real Kafka"))
	for _, want := range []string{"ok  \tm/a\t", "FAIL\tm/b\t", "the reason", "boom", "no int", "[no test files]", "not today", "  m/c TestPanics\n", "  m/d\n"} {
		require.Contains(t, out, want)
	}
}
