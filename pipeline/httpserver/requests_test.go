package httpserver_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/httpserver"
)

// serve runs a server and returns its address.
func serve(t *testing.T, rs *httpserver.Requests, h http.HandlerFunc) (*http.Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &http.Server{Handler: rs.Handler(h), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return s, l.Addr().String()
}

func send(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(c, text)
	require.NoError(t, err)
	return c
}

// Clients that send or read nothing do not make a stop fail, and do not make it longer.
func TestAStopClosesTheConnectionsOfLateClients(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request string
		handler http.HandlerFunc
	}{
		"nothing is sent":   {"", nil},
		"half a header":     {"GET / HTTP/1.1\r\nHost", nil},
		"no body, refused":  {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", http.NotFound},
		"no body, awaited":  {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) }},
		"nothing is read":   {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<20)) }},
		"nothing is read 2": {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", endless},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached := make(chan struct{}, 1)
			rs := &httpserver.Requests{Patience: time.Millisecond}
			s, addr := serve(t, rs, func(w http.ResponseWriter, r *http.Request) {
				reached <- struct{}{}
				c.handler(w, r)
			})
			client := send(t, addr, c.request)
			if c.handler != nil {
				<-reached
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			require.NoError(t, rs.Stop(ctx, s))
			require.NoError(t, ctx.Err(), "the stop has waited for the client")
			_, err := io.Copy(io.Discard, client)
			if failed, ok := err.(net.Error); ok { //nolint:errorlint // it is not wrapped
				require.False(t, failed.Timeout(), "the connection is open")
			}
		})
	}
}

// endless writes and flushes until an error.
func endless(w http.ResponseWriter, _ *http.Request) {
	c := http.NewResponseController(w)
	for err := error(nil); err == nil; err = c.Flush() {
		_, _ = w.Write(make([]byte, 1<<20))
	}
}

// A stop does not cut an answer that is being written: of a handler that has returned, and of one
// that writes its answer in parts. Each write takes 10 ms of the time of the bubble, less than the
// time between two looks at the requests, and the looks fall into the writes.
func TestAStopCutsNoAnswerThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	const patience, write = 100 * time.Millisecond, 10 * time.Millisecond
	for name, handler := range map[string]http.HandlerFunc{
		"after its handler": func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(patience - time.Millisecond)
			_, _ = io.WriteString(w, "complete")
		},
		"in parts, and after its handler": func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(patience - time.Millisecond)
			_, _ = io.WriteString(w, "comp")
			_ = http.NewResponseController(w).Flush() // until the first look is over
			time.Sleep(httpserver.StopPoll - write)
			_, _ = io.WriteString(w, "lete")
		},
		"in parts": func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(patience - time.Millisecond)
			for _, part := range []string{"comp", "lete"} {
				_, _ = io.WriteString(w, part)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(2 * write)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, accepted := net.Pipe()
				l := &one{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
				l.conn <- &slowConn{Conn: accepted, write: write}
				rs := &httpserver.Requests{Patience: patience}
				reached := make(chan struct{})
				s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: rs.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(reached)
					handler(w, r)
				}))}
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }()
				_, err := io.WriteString(client, "GET / HTTP/1.0\r\n\r\n")
				require.NoError(t, err)
				<-reached
				stopped := make(chan error, 1)
				go func() { stopped <- rs.Stop(t.Context(), s) }()
				answer, err := io.ReadAll(client)
				require.NoError(t, err)
				require.Contains(t, string(answer), "complete")
				require.NoError(t, <-stopped)
				require.ErrorIs(t, <-served, http.ErrServerClosed)
			})
		})
	}
}

// one is a listener with one connection.
type one struct {
	conn   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (o *one) Accept() (net.Conn, error) {
	select {
	case c := <-o.conn:
		return c, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *one) Close() error {
	o.once.Do(func() { close(o.closed) })
	return nil
}

func (o *one) Addr() net.Addr { return &net.TCPAddr{} }

// slowConn is a connection whose writes take time.
type slowConn struct {
	net.Conn
	write time.Duration
}

func (c *slowConn) Write(b []byte) (int, error) {
	time.Sleep(c.write)
	return c.Conn.Write(b)
}

// The end of the context ends the wait for a handler. The error names its request.
func TestAHandlerThatDoesNotEndIsNamed(t *testing.T) {
	t.Parallel()
	reached, release := make(chan struct{}), make(chan struct{})
	rs := &httpserver.Requests{Patience: time.Millisecond}
	s, addr := serve(t, rs, func(http.ResponseWriter, *http.Request) {
		reached <- struct{}{}
		<-release
	})
	send(t, addr, "GET /slow?token=secret HTTP/1.1\r\nHost: a\r\n\r\n")
	<-reached
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := rs.Stop(ctx, s)
	require.EqualError(t, err, "requests have not ended: GET /slow: context deadline exceeded")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A client that takes no byte of an answer is disconnected, although the answer has no limit.
func TestWriteStall(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	rs := &httpserver.Requests{WriteStall: 50 * time.Millisecond}
	_, addr := serve(t, rs, func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(make([]byte, 64<<20))
		failed <- err
	})
	send(t, addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	require.ErrorContains(t, <-failed, "timeout")
}
