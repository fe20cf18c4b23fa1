package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// events makes the JSON of lines "action package test [output, server or seconds]"; a dash is an
// empty field.
func events(t *testing.T, lines ...string) string {
	t.Helper()
	var b strings.Builder
	for _, line := range lines {
		f := append(strings.SplitN(line, " ", 4), "", "", "")
		e := event{Action: f[0], Package: f[1], Test: strings.Trim(f[2], "-")}
		switch e.Action {
		case "output":
			e.Output = f[3] + "\n"
		case "attr":
			e.Key, e.Value, _ = strings.Cut(f[3], "=")
		case "pass", "fail":
			_, _ = fmt.Sscan(f[3], &e.Elapsed)
		}
		j, err := json.Marshal(e)
		require.NoError(t, err)
		b.Write(append(j, '\n'))
	}
	return b.String()
}

func summarize(t *testing.T, ci, in string, args ...string) (code int, out, flaky string) {
	t.Helper()
	file, list := filepath.Join(t.TempDir(), "test.json"), filepath.Join(t.TempDir(), "flaky.txt")
	require.NoError(t, os.WriteFile(file, []byte(in), 0o600))
	var o bytes.Buffer
	code = run(append(append([]string{"-flaky", list}, args...), file), func(string) string { return ci }, &o, &o)
	text, _ := os.ReadFile(list)
	return code, o.String(), string(text)
}

// row returns the numbers of a row of the table.
func row(t *testing.T, out, what string) string {
	t.Helper()
	for line := range strings.Lines(out) {
		if rest, found := strings.CutPrefix(line, what+" "); found {
			return strings.Join(strings.Fields(rest), " ")
		}
	}
	require.Fail(t, "no row "+what, out)
	return ""
}

func TestCountsPerServer(t *testing.T) {
	t.Parallel()
	server := " " + tier.Attribute + "="
	code, out, _ := summarize(t, "true", events(t,
		"start p -",
		"run p TestA", "attr p TestA"+server+"kafka", "run p TestA/one", "pass p TestA/one", "run p TestA/two", "attr p TestA/two"+server+"redis", "pass p TestA/two", "pass p TestA",
		"run p TestB", "attr p TestB"+server+"embedded", "pass p TestB 90.5", "attr p TestB "+tier.WaitedAttribute+"=1m20s",
		"run p TestC", "output p TestC     c_test.go:7: because of the weather", "skip p TestC",
		"pass p -"), "-want", "kafka,redis")
	require.Zero(t, code, out)
	require.Equal(t, "3 3 0 1", row(t, out, "all"), "leaves only")
	require.Equal(t, "2 2 0 0", row(t, out, "on real Kafka"), "subtests of a test that met Kafka")
	require.Equal(t, "1 1 0 0", row(t, out, "on real Redis"))
	require.Equal(t, "1 1 0 0", row(t, out, "embedded (kfake, miniredis, SQLite)"))
	require.Contains(t, out, "      1  because of the weather\n")
}

func TestTheSlowestWithoutTheirWait(t *testing.T) {
	t.Parallel()
	lines := []string{"start p -", "run p TestQueue", "attr p TestQueue " + tier.WaitedAttribute + "=1m20s", "pass p TestQueue 90.5"}
	for i := range 12 {
		lines = append(lines, fmt.Sprintf("run p Test%d", i), fmt.Sprintf("pass p Test%d %d.25", i, i))
	}
	_, out, _ := summarize(t, "", events(t, append(lines, "pass p -")...))
	_, list, found := strings.Cut(out, "slowest\n")
	require.True(t, found, out)
	require.True(t, strings.HasPrefix(list, "   11.2s p Test11\n   10.5s p TestQueue\n   10.2s p Test10\n"), list)
	require.Contains(t, list, "p Test3\n")
	require.NotContains(t, list, "p Test2\n")
}

func TestWhatFails(t *testing.T) {
	t.Parallel()
	failed := []string{"start p -", "run p TestA", "fail p TestA", "fail p -"}
	for name, c := range map[string]struct {
		ci    string
		lines []string
		args  []string
		says  string // empty: all passed
		flaky string
	}{
		"a test":                       {"", failed, nil, "\n  p TestA\n", ""},
		"a test that passes once more": {"", append(failed[:4:4], "start p -", "run p TestA", "pass p TestA", "pass p -"), nil, "", "  p TestA\n"},
		"a subtest with a random name": {"", []string{"start p -", "run p TestA", "run p TestA/x1", "fail p TestA/x1", "fail p TestA", "fail p -",
			"start p -", "run p TestA", "run p TestA/x2", "pass p TestA/x2", "pass p TestA", "pass p -"}, nil, "", "  p TestA\n"},
		"it fails again before its subtests": {"", []string{"start p -", "run p TestA", "run p TestA/x1", "fail p TestA/x1", "fail p TestA", "fail p -",
			"start p -", "run p TestA", "fail p TestA", "fail p -"}, nil, "\n  p TestA\n", ""},
		"another package has a test of that name": {"", []string{"start q -", "run q TestA", "run q TestA/x1", "fail q TestA/x1", "fail q TestA", "fail q -",
			"start p -", "run p TestA", "fail p TestA", "fail p -", "start p -", "run p TestA", "pass p TestA", "pass p -"}, nil, "\n  q TestA/x1\n", "  p TestA\n"},
		"a test that fails again":         {"", append(failed[:4:4], failed...), nil, "\n  p TestA\n", ""},
		"a package without a failed test": {"", []string{"start p -", "run p TestA", "pass p TestA", "output p - goleak: found", "fail p -"}, nil, "a panic or a build)\ngoleak: found", ""},
		// gotestsum runs it again without any test, and takes it for passed.
		"the same, run again":         {"", []string{"start p -", "pass p TestA", "fail p -", "start p -", "pass p -"}, nil, "p (no test of it failed", ""},
		"a test that never ended":     {"", []string{"start p -", "run p TestA", "run p TestA/x", "fail p -"}, nil, "p TestA/x (it never ended)", ""},
		"nothing ran":                 {"", nil, nil, "no package was tested", ""},
		"a server is missing":         {"true", []string{"start p -", "run p TestA", "output p TestA a_test.go:1: MILLRACE_TEST_KAFKA is not set", "skip p TestA", "pass p -"}, nil, "in CI no server may be missing", ""},
		"a server is missing at home": {"", []string{"start p -", "run p TestA", "output p TestA a_test.go:1: MILLRACE_TEST_KAFKA is not set", "skip p TestA", "pass p -"}, nil, "", ""},
		"no test met a wanted server": {"true", []string{"start p -", "run p TestA", "pass p TestA", "pass p -"}, []string{"-want", "kafka"}, "no test ran on real Kafka", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out, flaky := summarize(t, c.ci, events(t, c.lines...), c.args...)
			require.Equal(t, c.flaky, flaky)
			if c.says == "" {
				require.Zero(t, code, out)
				require.NotContains(t, out, "FAILED")
				return
			}
			require.Equal(t, 1, code, out)
			require.Contains(t, out, "FAILED:\n")
			require.Contains(t, out, c.says)
		})
	}
}

// What has more in the rest is selected by its top-level test.
func TestThePatternOfTheRest(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rest.txt")
	more := " " + tier.RestAttribute + "=more"
	code, out, _ := summarize(t, "", events(t, "start p -", "run p TestB", "run p TestB/x", "attr p TestB/x"+more, "skip p TestB/x", "pass p TestB",
		"run p TestQuick", "pass p TestQuick", "run p TestA", "attr p TestA"+more, "skip p TestA", "pass p -"), "-rest", file)
	require.Zero(t, code, out)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "^(TestA|TestB)$", string(text))
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"a", "b"}, {"-want", "oracle", "x.json"}, {"-what", "x.json"}} {
		var out bytes.Buffer
		require.Equal(t, 2, run(args, os.Getenv, &out, &out), args)
	}
}

// The reason of a skip has lines of the server's log, which say why it ended. It is there once for all tests, also where
// a skipped test is a failure.
func TestWhyTestsWereSkipped(t *testing.T) {
	t.Parallel()
	const all = 12
	lines := []string{"start p -", "run p TestTop"}
	for n := range all {
		name := fmt.Sprintf("TestTop/%02d", n)
		lines = append(lines, "run p "+name, "output p "+name+"     a_test.go:1: MILLRACE_TEST_POSTGRES: no server of its own can be started: it ended",
			"output p "+name+"         FATAL: could not create shared memory segment: x.go:1: no space left", "output p "+name+"     --- SKIP: "+name, "output p "+name+"         not of the reason",
			"skip p "+name)
	}
	lines = append(lines, "skip p TestTop", "run p TestOther", "output p TestOther     b_test.go:1: MILLRACE_TEST_KAFKA is not set", "skip p TestOther", "pass p -")
	const reason = "     12  MILLRACE_TEST_POSTGRES: no server of its own can be started: it ended\n         FATAL: could not create shared memory segment: x.go:1: no space left\n"
	code, out, _ := summarize(t, "", events(t, lines...))
	require.Zero(t, code, out)
	require.Contains(t, out, reason)
	require.NotContains(t, out, "not of the reason")

	code, out, _ = summarize(t, "true", events(t, lines...))
	require.Equal(t, 1, code)
	require.Contains(t, out, reason)
	_, failed, _ := strings.Cut(out, "FAILED:\n")
	require.Equal(t, "  in CI no server may be missing, and 1 test was skipped, such as p TestOther: MILLRACE_TEST_KAFKA is not set\n"+
		"  in CI no server may be missing, and 12 tests were skipped, such as p TestTop/00: MILLRACE_TEST_POSTGRES: no server of its own can be started: it ended\n", failed)
}
