package e2e

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// SIGTERM ends a process well, although ten clients of each server have sent half a request.
func TestHalfSentRequestsDoNotFailAStop(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	operations := unusedAddress(t)
	s := startJobs(t, servers.RedisAddr(), "half-sent", "MILLRACE__PLUGINS__TELEMETRY__LISTEN="+operations)
	var open []net.Conn
	for _, addr := range []string{strings.TrimPrefix(s.url, "http://"), operations} {
		for i := range 10 {
			c, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			request := "POST /absent HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
			if i%2 == 0 {
				request = "GET /absent HTTP/1.1\r\nHost"
			}
			_, err = io.WriteString(c, request)
			require.NoError(t, err)
			open = append(open, c)
		}
	}
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.ends()
	require.NotContains(t, s.log.String(), "deadline exceeded")
	for _, c := range open {
		require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		_, err := io.Copy(io.Discard, c)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is still open")
	}
}

// A start that promises more streams than the process may have file descriptors is refused.
func TestMoreStreamsThanFileDescriptorsIsExitCode2(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	s := newJobs(t, servers.RedisAddr(), "few-descriptors")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -n 300 && exec "$0" run --config "$1"`, s.program, s.config)
	cmd.Env = append(os.Environ(), "MILLRACE__PLUGINS__WEB__MAX_STREAMS=1000")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, app.ExitUsage, cmd.ProcessState.ExitCode(), "%s", out)
	require.Contains(t, string(out), "plugins.web.max_streams is 1000, and the limit of file descriptors (300) leaves 150 for clients")
}
