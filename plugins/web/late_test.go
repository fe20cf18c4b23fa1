package web_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/web"
)

const noBody = "Content-Length: 1000\r\n\r\n" // headers end, and the body never comes

// lateRequests are requests whose body never comes, and what the server answers when it gives up.
func lateRequests() map[string]struct{ request, status string } {
	const origin = "Origin: https://evil.example\r\n"
	return map[string]struct{ request, status string }{
		"no such path":              {"POST /absent HTTP/1.1\r\nHost: a\r\n" + noBody, " 404 "},
		"no such path, chunked":     {"POST /absent HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", " 404 "},
		"another method":            {"POST /x HTTP/1.1\r\nHost: a\r\n" + noBody, " 405 "},
		"a foreign page":            {"POST /users HTTP/1.1\r\nHost: a\r\n" + origin + noBody, " 403 "},
		"a preflight":               {"OPTIONS /x HTTP/1.1\r\nHost: a\r\n" + origin + "Access-Control-Request-Method: GET\r\n" + noBody, " 403 "},
		"no user":                   {"POST /users HTTP/1.1\r\nHost: a\r\n" + noBody, " 401 "},
		"no key of the sign-in":     {"POST /users HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n" + noBody, " 401 "},
		"a handler that ignores it": {"GET /x HTTP/1.1\r\nHost: a\r\n" + noBody, " 200 "},
		"a handler that reads it":   {"POST /read HTTP/1.1\r\nHost: a\r\n" + noBody, " 200 "},
		"half a body":               {"POST /absent HTTP/1.1\r\nHost: a\r\n" + noBody + "half", " 404 "},
		"the second request":        {"GET /x HTTP/1.1\r\nHost: a\r\n\r\nPOST /absent HTTP/1.1\r\nHost: a\r\n" + noBody, " 404 "},
	}
}

func lateSite(s *site) {
	s.web.Handle("GET /x", text("x"))
	s.web.Handle("POST /users", user(), web.Users())
	s.web.Handle("POST /read", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) }))
	s.web.Handle("GET /events", s.events(), web.Stream())
}

func behindProxies(c *web.Config) { c.TrustedProxies, c.Auth.Header = []string{"10.0.0.0/8"}, "X-User" }

// The limit of time applies to requests that are refused, too.
func TestABodyThatNeverComes(t *testing.T) {
	t.Parallel()
	r := newRig(t, behindProxies, lateSite)
	r.web.SetTimeouts(time.Second)
	require.NoError(t, r.runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })
	for name, late := range lateRequests() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := io.ReadAll(dial(t, r, late.request))
			require.NoError(t, err, "the connection stays open")
			require.Contains(t, string(answer), late.status)
		})
	}
}

func TestABodyThatNeverComesWhileDraining(t *testing.T) {
	t.Parallel()
	r := newRig(t, behindProxies, lateSite)
	r.web.SetTimeouts(time.Second)
	require.NoError(t, r.runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })
	r.web.Refuse()
	answer, err := io.ReadAll(dial(t, r, "GET /x HTTP/1.1\r\nHost: a\r\n"+noBody))
	require.NoError(t, err)
	require.Contains(t, string(answer), " 503 ")
}

// Answers that nobody reads have a limit, too.
func TestRefusalsThatNobodyReads(t *testing.T) {
	t.Parallel()
	r := newRig(t, behindProxies, lateSite)
	r.web.SetTimeouts(time.Second)
	require.NoError(t, r.runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })
	c := dial(t, r, "")
	var err error
	for err == nil { // until the buffers of both directions are full, and the server gives up
		_, err = io.WriteString(c, "GET /absent HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	require.False(t, isTimeout(err), "the server waits for ever: %v", err)
}

// A stop is a success, whatever clients have not sent or read.
func TestAStopDoesNotWaitForClients(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{}, 100)
	r := newRig(t, behindProxies, func(s *site) {
		lateSite(s)
		s.web.Handle("GET /large", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reached <- struct{}{}
			_, _ = w.Write(make([]byte, 64<<20)) // more than all buffers
		}))
	})
	r.web.SetPatience(10 * time.Millisecond)
	r.runtime = pipeline.NewRuntime(r.registry, pipeline.RuntimeOptions{StopTimeout: time.Minute}) // more than the test permits
	require.NoError(t, r.runtime.StartServices(t.Context()))
	for name, late := range lateRequests() {
		if name != "the second request" { // it is answered in part
			dial(t, r, late.request)
		}
	}
	dial(t, r, "")
	dial(t, r, "GET /events HTTP/1.1\r\nHost: a\r\n"+noBody)
	dial(t, r, "GET /x HTTP/1.1\r\nHost: a\r\nX-Half")
	dial(t, r, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n") // and reads nothing
	dial(t, r, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x09\x01")
	<-reached
	// HTTP/2: a request whose body never comes, in its handler.
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	t.Cleanup(transport.CloseIdleConnections)
	body, never := io.Pipe()
	defer never.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.web.Addr()+"/read", body)
	require.NoError(t, err)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		answer, err := transport.RoundTrip(request)
		if err == nil {
			answer.Body.Close()
		}
	}()
	require.Eventually(t, func() bool { return r.metric("millrace_web_connections", nil) >= 15 }, 2*time.Minute, 10*time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	require.NoError(t, r.runtime.Stop(ctx))
	require.NoError(t, ctx.Err(), "it has waited for clients to the end")
	require.Eventually(t, func() bool { return r.metric("millrace_web_connections", nil) == 0 }, 2*time.Minute, time.Millisecond, "each goroutine counts its closed connection")
	<-sent
}

// A handler at work is waited for, and named when it does not end.
func TestAStopWaitsForHandlers(t *testing.T) {
	t.Parallel()
	reached, release := make(chan struct{}), make(chan struct{})
	r := newRig(t, nil, func(s *site) {
		s.web.Handle("GET /slow", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reached <- struct{}{}
			<-release
			_, _ = io.WriteString(w, "done")
		}))
	})
	r.web.SetPatience(time.Millisecond)
	require.NoError(t, r.runtime.StartServices(t.Context()))
	answer := make(chan string, 1)
	c := dial(t, r, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
	go func() {
		text, _ := io.ReadAll(c)
		answer <- string(text)
	}()
	<-reached
	stopped := make(chan error, 1)
	go func() { stopped <- r.runtime.Stop(context.Background()) }()
	require.Eventually(t, func() bool { return r.web.Stopping() }, 2*time.Minute, time.Millisecond)
	select {
	case err := <-stopped:
		require.FailNow(t, "the stop did not wait", "%v", err)
	case <-time.After(100 * time.Millisecond): // many times the patience
	}
	close(release)
	require.Contains(t, <-answer, "done")
	require.NoError(t, <-stopped)
}

func isTimeout(err error) bool {
	failed, ok := errors.AsType[net.Error](err)
	return ok && failed.Timeout()
}
