package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// ofTheMain reports whether a line of the README is about its main.go, or about a module that starts with a handler,
// which TestTheFirstHandlerPage runs.
func ofTheMain(line string) bool {
	for _, prefix := range []string{"go mod ", "go -C ../millrace ", "export SHOP__", "go run . "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// The only Go of the README is a program. It is pasted, built and run by the commands below it, and an order that
// arrives twice has one invoice.
func TestTheMainOfTheReadme(t *testing.T) {
	tier.Default(t)
	if testing.Short() {
		t.Skip("builds a module")
	}
	t.Parallel()
	page, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(page), "```go\n"), "another program, which nobody runs")
	_, code, _ := strings.Cut(string(page), "```go\n")
	code, _, _ = strings.Cut(code, "```\n")
	repository, err := filepath.Abs("..")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(code), 0o600))
	sums, err := os.ReadFile("../go.sum") // so that nothing is looked up
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	environ := append(os.Environ(), "GOFLAGS=-buildvcs=false -trimpath")
	command := func(line string) *exec.Cmd {
		line = strings.ReplaceAll(strings.ReplaceAll(line, "../millrace", repository), "go run .", "./shop") // go run hands on no signal
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+line)
		cmd.Dir, cmd.Env = dir, environ
		return cmd
	}
	says := func(line, want string) { // what was sent takes a moment
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			out, _ := command(line).CombinedOutput()
			assert.Contains(c, string(out), want, line)
		}, 2*time.Minute, 10*time.Millisecond)
	}
	do := func(line string) {
		out, err := command(line).CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
	}
	var written bytes.Buffer
	var service *exec.Cmd
	explained := false
	for _, line := range slices.DeleteFunc(commands(t, "README.md"), func(line string) bool { return !ofTheMain(line) }) {
		if explained {
			break // the others are of a module that starts with a handler
		}
		name, exported := strings.CutPrefix(line, "export ")
		switch {
		case exported:
			environ = append(environ, name)
		case line == "go run . run":
			do("go build -o shop .")
			service = command(line)
			service.Stdout = &written
			require.NoError(t, service.Start())
			require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, ".shop", "running.json")); return err == nil }, 2*time.Minute, 10*time.Millisecond)
		case strings.Contains(line, " explain "):
			says(line, "Next: nothing. It is done.")
			explained = true
		default:
			do(line)
		}
	}
	require.True(t, explained)
	do(`go run . send orders '{"customer":"acme","id":"18"}'`)
	says("go run . once explain --kind invoice --group acme --id 18", "Next: nothing. It is done.")
	require.NoError(t, service.Process.Signal(syscall.SIGTERM))
	require.NoError(t, service.Wait())
	require.Equal(t, "invoice for acme with the idempotency key invoice:acme:17\ninvoice for acme with the idempotency key invoice:acme:18\n", written.String())
}
