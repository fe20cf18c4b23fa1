//go:build unix

package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// flooded makes this test binary a process with few file descriptors.
const flooded = "MILLRACE_TEST_FLOODED"

// A flood of the public server leaves descriptors for the operations server and for connections to
// other servers.
func TestAFloodLeavesFileDescriptors(t *testing.T) {
	if os.Getenv(flooded) != "" {
		serveWithFewDescriptors(t)
		return
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestAFloodLeavesFileDescriptors$", "-test.v") //nolint:gosec // this binary
	cmd.Env = append(os.Environ(), flooded+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	var public, operations string
	for operations == "" {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		_, _ = fmt.Sscanf(line, "listening %s %s", &public, &operations)
	}
	for range 400 {
		c, err := net.Dial("tcp", public)
		if err != nil {
			require.ErrorIs(t, err, syscall.ECONNRESET) // it is refused
			continue
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = io.WriteString(c, "GET /absent HTTP/1.1\r\nHost: a\r\n\r\n") // it may be closed already
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	var metrics string
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		for _, path := range []string{"/livez", "/readyz", "/metrics"} {
			answer, err := client.Get("http://" + operations + path)
			require.NoError(t, err)
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, answer.StatusCode, "%s", body)
			metrics = string(body)
		}
		require.Contains(t, metrics, "millrace_web_connections 150\n")
		require.Contains(t, metrics, "millrace_web_refused_connections_total{reason=\"full\"} 250\n")
		require.Contains(t, metrics, "millrace_web_refused_connections_total{reason=\"descriptors\"} 0\n")
	}, 2*time.Minute, 50*time.Millisecond)
	require.NoError(t, in.Close())
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait(), "%s", rest)
	require.Equal(t, 1, strings.Count(string(rest), "connection refused"), "%s", rest)
}

// serveWithFewDescriptors serves until the standard input ends.
func serveWithFewDescriptors(t *testing.T) {
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 300, Max: 300}))
	r := start(t, nil, func(s *site) { s.web.Handle("GET /x", text("x")) })
	fmt.Println("listening", r.web.Addr(), r.ops.Addr())
	_, err := io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	for i := range 50 {
		c, err := net.Dial("tcp", other.Addr().String())
		require.NoError(t, err, i)
		t.Cleanup(func() { _ = c.Close() })
	}
	fmt.Println(r.log)
}
