package promotiontype_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

const repository = "../../.."

// A further promotion type is one file and one line. The test adds testdata/cashback.go to the
// build and runs the commands of "How to add a promotion type" in CONTRIBUTING.md.
func TestAFurtherTypeIsAFileAndALine(t *testing.T) {
	tier.Rest(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	env := append(withoutTestSettings(os.Environ()), "GOFLAGS=-overlay="+overlay(t, dir), "MILLRACE__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0")
	command := func(line string) *exec.Cmd {
		line = strings.NewReplacer("bin/millrace", filepath.Join(dir, "millrace"), "/tmp/cashback", filepath.Join(dir, "data")).Replace(line)
		args, env := strings.Fields(line), env
		for ; strings.Contains(args[0], "="); args = args[1:] {
			env = append(slices.Clone(env), args[0])
		}
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir, cmd.Env = repository, env
		return cmd
	}
	lines := documented(t)
	require.Len(t, lines, 5, "tests, a build, a campaign of generated targets, one of a file, and its reconciliation")
	for _, line := range lines[:2] {
		out, err := command(line).CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
	}

	var printed pipelinetest.Buffer
	demo := command(lines[2])
	demo.Stdout, demo.Stderr = &printed, &printed
	demo.Cancel = func() error { return demo.Process.Signal(os.Interrupt) }
	require.NoError(t, demo.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = demo.Wait() // the error is that of ctx
	}()
	require.Eventually(t, func() bool { return strings.Contains(printed.String(), "Still running") }, 2*time.Minute, 50*time.Millisecond, &printed)
	require.Contains(t, printed.String(), "CASHBACK", "it pays generated targets of the type")

	out, err := command(lines[3]).CombinedOutput()
	require.NoError(t, err, "%s: %s", lines[3], out)
	require.Eventually(t, func() bool {
		out, err = command(lines[4]).CombinedOutput()
		return err == nil
	}, 2*time.Minute, 100*time.Millisecond, "it is paid and balances: %s", &printed)
	require.Contains(t, string(out), "The books balance: nothing lost, nothing paid twice.")
	paid := table(t, filepath.Join(dir, "data", "targets.csv"))
	require.Len(t, paid, 2)
	for i, cents := range []string{"500", "1200"} {
		require.Equal(t, "matched", paid[i]["buckets"])
		for _, column := range []string{"offered_amount", "accepted_amount", "charged_amount"} {
			require.Equal(t, cents, paid[i][column], column)
		}
	}

	cancel()
	<-ended
	require.Zero(t, demo.ProcessState.ExitCode(), "the books of the generated targets balance: %s", &printed)
}

// overlay returns a file for `go build -overlay` that adds the type of testdata.
func overlay(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadFile("list.go")
	require.NoError(t, err)
	last := []byte("\tvoucher(),\n")
	require.Equal(t, 1, bytes.Count(list, last))
	longer := filepath.Join(dir, "list.go")
	require.NoError(t, os.WriteFile(longer, bytes.Replace(list, last, append(last, "\tcashback(),\n"...), 1), 0o600))
	here, err := os.Getwd()
	require.NoError(t, err)
	text, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(here, "list.go"):     longer,
		filepath.Join(here, "cashback.go"): filepath.Join(here, "testdata", "cashback.go"),
	}})
	require.NoError(t, err)
	path := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// documented returns the commands in the section of CONTRIBUTING.md about promotion types.
func documented(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "CONTRIBUTING.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## How to add a promotion type\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(strings.ReplaceAll(block[1], "\\\n", "")), "\n")...)
	}
	return lines
}

// withoutTestSettings leaves out the variables that select tests and servers.
func withoutTestSettings(env []string) (left []string) {
	for _, variable := range env {
		if !strings.HasPrefix(variable, "MILLRACE_TEST") {
			left = append(left, variable)
		}
	}
	return left
}

// table returns the lines of a CSV file by column.
func table(t *testing.T, path string) (lines []map[string]string) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	all, err := csv.NewReader(file).ReadAll()
	require.NoError(t, err)
	for _, fields := range all[1:] {
		line := map[string]string{}
		for i, name := range all[0] {
			line[name] = fields[i]
		}
		lines = append(lines, line)
	}
	return lines
}
