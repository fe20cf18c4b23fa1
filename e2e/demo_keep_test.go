package e2e

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// keptDemo is a demo that keeps running after its report.
type keptDemo struct {
	*exec.Cmd
	printed *pipelinetest.Buffer
	ended   chan error
}

// keep starts a demo, and waits until it has printed something.
func keep(ctx context.Context, t *testing.T, what string, env []string, args ...string) *keptDemo {
	t.Helper()
	d := &keptDemo{Cmd: exec.CommandContext(ctx, binary(t), args...), printed: &pipelinetest.Buffer{}, ended: make(chan error, 1)}
	d.Dir = t.TempDir()
	d.Env = append(os.Environ(), append(env, "MILLRACE__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0")...)
	d.Stdout, d.Stderr = d.printed, d.printed
	d.Cancel = func() error { return d.Process.Signal(os.Interrupt) }
	require.NoError(t, d.Start())
	go func() { d.ended <- d.Wait() }()
	require.Eventually(t, func() bool { return strings.Contains(d.printed.String(), what) || len(d.ended) > 0 }, 4*time.Minute, 50*time.Millisecond)
	require.Contains(t, d.printed.String(), what)
	return d
}

// ends checks how a demo ends after its interrupt.
func (d *keptDemo) ends(t *testing.T) {
	t.Helper()
	select {
	case <-d.ended:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the demo does not end")
	}
	require.Equal(t, app.ExitOK, d.ProcessState.ExitCode(), d.printed.String())
}

// Each demo that keeps running prints the address of its console, also while another process has the usual port.
func TestAKeptDemoShowsItsConsole(t *testing.T) {
	tier.Rest(t, tier.Promotion, tier.Router, tier.Room, tier.CLI)
	t.Parallel()
	for name, demo := range map[string]struct {
		args          []string
		printed, page string
	}{
		"campaign": {[]string{"demo", "--targets", "20"}, "  console +", "Campaigns"},
		"jobs":     {[]string{"jobs", "demo", "--jobs", "2", "--events", "5"}, "See it at ", "Jobs"},
		"room":     {[]string{"room", "demo", "--users", "20", "--seats", "5", "--concurrency", "5"}, "See it at ", "Waiting rooms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			usual := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(usual.Close)
			taken := "MILLRACE__PLUGINS__CONSOLE__LISTEN=" + usual.Listener.Addr().String()
			d := keep(ctx, t, "Still running; Ctrl-C ends it.", []string{taken}, append(demo.args, "--keep")...)
			line := regexp.MustCompile("(?m)^" + demo.printed + `(http://127\.0\.0\.1:\d+/)$`)
			require.Eventually(t, func() bool { return line.MatchString(d.printed.String()) }, 2*time.Minute, 50*time.Millisecond, "no address: %s", d.printed)
			answer, err := http.Get(line.FindStringSubmatch(d.printed.String())[1])
			require.NoError(t, err)
			text, err := io.ReadAll(answer.Body)
			require.NoError(t, errors.Join(err, answer.Body.Close()))
			require.Equal(t, http.StatusOK, answer.StatusCode, string(text))
			require.Contains(t, string(text), ">"+demo.page+"</a>", "its console has the page of what it shows")
			cancel()
			d.ends(t)
		})
	}
}

// The commands that `demo --keep` prints work while it runs. An interrupt ends it, and its exit
// code is that of the campaign.
func TestTheCommandsThatAKeptDemoPrints(t *testing.T) {
	tier.Default(t)
	t.Parallel()
	bin := binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	demo := keep(ctx, t, "campaign reconcile", nil, "demo", "--keep", "--targets", "50")

	_, commands, found := strings.Cut(demo.printed.String(), "Try in another terminal:\n")
	require.True(t, found)
	tried := 0
	for line := range strings.Lines(commands) {
		args := strings.Fields(line)
		if len(args) == 0 || args[0] != bin {
			continue
		}
		command := exec.CommandContext(ctx, args[0], args[1:]...)
		command.Dir = demo.Dir
		command.Env = append(os.Environ(), "MILLRACE__COMMAND_WAIT=1m") // of a machine that is busy with other scenarios
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
		tried++
	}
	require.Equal(t, 3, tried, commands)
	select {
	case <-demo.ended:
		require.FailNow(t, "the demo ended without an interrupt", demo.printed.String())
	case <-time.After(5 * time.Second): // longer than an idle demo needs to stop
	}

	cancel()
	demo.ends(t)

	late := exec.Command(bin, "campaign", "list", "--profile", "embedded")
	late.Dir = demo.Dir
	out, err := late.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, app.ExitUnavailable, late.ProcessState.ExitCode())
	require.Contains(t, string(out), "no embedded environment is running in "+filepath.Join(demo.Dir, ".millrace"))
}
