package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// The commands that `demo --keep` prints work while it runs. An interrupt ends it, and its exit
// code is that of the campaign.
func TestTheCommandsThatAKeptDemoPrints(t *testing.T) {
	tier.Default(t)
	t.Parallel()
	bin := binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var printed pipelinetest.Buffer
	demo := exec.CommandContext(ctx, bin, "demo", "--keep", "--targets", "50")
	demo.Dir = t.TempDir()
	demo.Env = append(os.Environ(), "MILLRACE__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0")
	demo.Stdout, demo.Stderr = &printed, &printed
	demo.Cancel = func() error { return demo.Process.Signal(os.Interrupt) }
	require.NoError(t, demo.Start())
	ended := make(chan error, 1)
	go func() { ended <- demo.Wait() }()
	require.Eventually(t, func() bool { return strings.Contains(printed.String(), "campaign reconcile") },
		2*time.Minute, 50*time.Millisecond, "the commands are printed")

	_, commands, found := strings.Cut(printed.String(), "Try in another terminal:\n")
	require.True(t, found)
	tried := 0
	for line := range strings.Lines(commands) {
		args := strings.Fields(line)
		if len(args) == 0 || args[0] != bin {
			continue
		}
		command := exec.CommandContext(ctx, args[0], args[1:]...)
		command.Dir = demo.Dir
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
		tried++
	}
	require.Equal(t, 3, tried, commands)
	select {
	case <-ended:
		require.FailNow(t, "the demo ended without an interrupt", printed.String())
	case <-time.After(5 * time.Second): // longer than an idle demo needs to stop
	}

	cancel()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the demo does not end")
	}
	require.Equal(t, app.ExitOK, demo.ProcessState.ExitCode(), printed.String())

	late := exec.Command(bin, "campaign", "list", "--profile", "embedded")
	late.Dir = demo.Dir
	out, err := late.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, app.ExitUnavailable, late.ProcessState.ExitCode())
	require.Contains(t, string(out), "no embedded environment is running in "+filepath.Join(demo.Dir, ".millrace"))
}
