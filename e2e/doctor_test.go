package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// The command finds the servers of the process that runs in the data folder, and says so when there is
// none.
func TestDoctorOfTheEmbeddedEnvironment(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.CLI, tier.Pipeline, tier.Kafka, tier.Redis, tier.Promotion)
	dir := t.TempDir()
	file := filepath.Join(dir, "millrace.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
profile: embedded
data_dir: %s
plugins:
  telemetry: {listen: "127.0.0.1:0"}
  web: {listen: "127.0.0.1:0"}
`, dir), 0o600))
	doctor := func() (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), binary(t), "doctor", "--config", file, "--json")
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run() // its code says it
		return cmd.ProcessState.ExitCode(), out.String(), errs.String()
	}
	code, stdout, stderr := doctor()
	require.Equal(t, app.ExitUnavailable, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "no embedded environment is running in "+dir)

	run := exec.CommandContext(t.Context(), binary(t), "run", "--config", file)
	require.NoError(t, run.Start())
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "running.json")); return err == nil }, 2*time.Minute, 10*time.Millisecond)
	var d operate.Diagnosis
	require.Eventually(t, func() bool { // the lock of the process comes after its file
		code, stdout, stderr = doctor()
		return code != app.ExitUnavailable
	}, 2*time.Minute, 10*time.Millisecond)
	require.Equal(t, app.ExitOK, code, stdout+stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), &d))
	var names []string
	for _, c := range d.Checks {
		names = append(names, c.Name)
	}
	require.Subset(t, names, []string{"process descriptors", "redis eviction", "redis rights"})
	require.NoError(t, run.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-ended)
}
