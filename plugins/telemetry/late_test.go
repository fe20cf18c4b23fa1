package telemetry_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// launch starts the operations server, with a handler that reads its request.
func launch(t *testing.T, configure func(*telemetry.Plugin)) (*telemetry.Plugin, *pipeline.Runtime) {
	t.Helper()
	p := telemetry.New()
	settings(t, p).Listen = "127.0.0.1:0"
	configure(p)
	registry, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.DiscardHandler)}, p, reader{})
	require.NoError(t, err)
	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{StopTimeout: 30 * time.Second})
	require.NoError(t, runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, runtime.Stop(context.Background())) })
	return p, runtime
}

type reader struct{}

func (reader) Name() string { return "reader" }

func (reader) Register(r *pipeline.Registry) error {
	r.HTTP("POST /read", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) }))
	return nil
}

func dial(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(c, text)
	require.NoError(t, err)
	return c
}

func lateRequests() map[string]string {
	const noBody = " HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
	return map[string]string{
		"no such path":            "POST /absent" + noBody,
		"another method":          "POST /livez" + noBody,
		"a handler that reads it": "POST /read" + noBody,
		"a handler of its own":    "GET /livez" + noBody,
	}
}

func TestABodyThatNeverComes(t *testing.T) {
	t.Parallel()
	p, _ := launch(t, func(p *telemetry.Plugin) { p.SetReadTimeout(200 * time.Millisecond) })
	for name, request := range lateRequests() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := io.ReadAll(dial(t, p.Addr(), request))
			require.NoError(t, err, "the connection stays open")
		})
	}
}

func TestAStopDoesNotWaitForClients(t *testing.T) {
	t.Parallel()
	p, runtime := launch(t, func(p *telemetry.Plugin) { p.SetPatience(time.Millisecond) })
	for _, request := range lateRequests() {
		dial(t, p.Addr(), request)
	}
	dial(t, p.Addr(), "GET /livez HTTP/1.1\r\nHalf")
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	require.NoError(t, runtime.Stop(ctx))
	require.NoError(t, ctx.Err(), "it has waited for clients to the end")
}

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	t.Parallel()
	p, _ := launch(t, func(*telemetry.Plugin) {})
	var open []net.Conn
	for range httpserver.Operations() {
		open = append(open, dial(t, p.Addr(), ""))
	}
	for range 3 {
		refused, err := net.Dial("tcp", p.Addr())
		if err != nil {
			continue // it was refused before the client saw that it was connected
		}
		require.NoError(t, refused.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = io.ReadAll(refused)
		failed, ok := errors.AsType[net.Error](err)
		require.False(t, ok && failed.Timeout(), "the connection stays open")
		refused.Close()
	}
	open[0].Close()
	require.Eventually(t, func() bool {
		answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}).Get("http://" + p.Addr() + "/metrics")
		if err != nil {
			return false // the closed connection still counts
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Contains(t, string(text), "millrace_telemetry_connections "+strconv.Itoa(httpserver.Operations())+"\n")
		require.Contains(t, string(text), `millrace_telemetry_refused_connections_total{reason="full"} `)
		return true
	}, 2*time.Minute, 10*time.Millisecond)
}
