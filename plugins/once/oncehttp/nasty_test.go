package oncehttp_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// rawServer runs serve for every connection it accepts, and is gone at the end of the test.
type rawServer struct {
	net.Listener
	accepted atomic.Int32
}

func newRawServer(t *testing.T, serve func(n int, c *net.TCPConn)) *rawServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &rawServer{Listener: l}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			n := int(s.accepted.Add(1))
			wg.Go(func() {
				defer c.Close()
				serve(n, c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

func (s *rawServer) url() string { return "http://" + s.Addr().String() }

// readRequest reads one whole request.
func readRequest(in *bufio.Reader) (key, body string, err error) {
	req, err := http.ReadRequest(in)
	if err != nil {
		return "", "", err
	}
	b, err := io.ReadAll(req.Body)
	return req.Header.Get("Idempotency-Key"), string(b), err
}

// answering reads requests and answers each with text. Then it closes, or with hold it waits for
// the other end to close.
func answering(text string, hold bool) func(int, *net.TCPConn) {
	return func(_ int, c *net.TCPConn) {
		in := bufio.NewReader(c)
		if _, _, err := readRequest(in); err != nil {
			return
		}
		io.WriteString(c, text)
		if hold {
			io.Copy(io.Discard, in)
		}
	}
}

// resetting reads one request and resets the connection.
func resetting(_ int, c *net.TCPConn) {
	readRequest(bufio.NewReader(c))
	c.SetLinger(0)
}

func ok(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func TestNastyServers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		serve func(int, *net.TCPConn)
		class once.Class
		text  string
	}{
		"done":                          {answering(ok(`{"id":"t-1"}`), true), once.Done, ""},
		"done and closed":               {answering("HTTP/1.0 200 OK\r\n\r\n{\"id\":\"t-1\"}", false), once.Done, ""},
		"done, in chunks":               {answering("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n7\r\n:\"t-1\"}\r\n0\r\n\r\n", true), once.Done, ""},
		"reset after the request":       {resetting, once.Unclear, "sent, but no answer"},
		"closed after the request":      {answering("", false), once.Unclear, "EOF"},
		"silence":                       {answering("", true), once.Unclear, "deadline exceeded"},
		"half an answer":                {answering(ok(`{"id":"t-1"}`)[:78], false), once.Unclear, "unexpected EOF"},
		"half an answer, then silence":  {answering(ok(`{"id":"t-1"}`)[:78], true), once.Unclear, "deadline exceeded"},
		"half a chunk":                  {answering("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{\"id\":\"t-1\"}", false), once.Unclear, "unexpected EOF"},
		"half a header":                 {answering("HTTP/1.1 200 OK\r\nContent-Le", false), once.Unclear, ""},
		"a header that never ends":      {answering("HTTP/1.1 200 OK\r\nA: b\r\n", true), once.Unclear, "deadline exceeded"},
		"a header without end":          {answering("HTTP/1.1 200 OK\r\nA: "+strings.Repeat("b", 200_000), true), once.Unclear, ""},
		"not HTTP":                      {answering("SSH-2.0-OpenSSH_9\r\n", false), once.Unclear, "malformed"},
		"not JSON":                      {answering(ok("<html>hello</html>"), true), once.Unclear, "invalid character"},
		"an empty 200":                  {answering(ok(""), true), once.Unclear, "unexpected end of JSON"},
		"no receipt":                    {answering(ok(`{"ok":true}`), true), once.Unclear, "id must have"},
		"another effect's answer":       {answering(ok(`{"id":"t-1","key":"invoice:acme:3"}`), true), once.Unclear, "another idempotency key"},
		"too large an answer":           {answering(ok(`{"id":"t-1","x":"`+strings.Repeat("x", 70_000)+`"}`), true), once.Unclear, "too large"},
		"rejected, and the body is cut": {answering("HTTP/1.1 422 No\r\nContent-Length: 50\r\n\r\n{\"code\"", false), once.Unrecognized, "422"},
		"throttled without a body":      {answering("HTTP/1.1 503 No\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n", true), once.Unrecognized, "503"},
		"an early hint, then done":      {answering("HTTP/1.1 103 Early Hints\r\n\r\n"+ok(`{"id":"t-1"}`), true), once.Done, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRawServer(t, c.serve)
			client := newClient(t, s.url(), func(cfg *oncehttp.Config) {
				if c.text == "deadline exceeded" { // it must have been sent by then
					cfg.CallTimeout = 2 * time.Second
				}
			})
			began := time.Now()
			a := post(t.Context(), client, "invoice:acme:2")
			require.Equal(t, c.class.String(), a.Class.String(), a.Text)
			require.Contains(t, a.Text, c.text)
			require.Less(t, time.Since(began), 30*time.Second)
			require.Equal(t, c.class == once.Done, a.Receipt == "t-1")
			require.EqualValues(t, 1, s.accepted.Load(), "nothing is sent twice on a fresh connection")
		})
	}
}

func TestNotSent(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		s := newRawServer(t, func(int, *net.TCPConn) {})
		s.Close()
		a := post(t.Context(), newClient(t, s.url(), nil), "invoice:acme:2")
		require.Equal(t, once.NotSent, a.Class)
		require.Contains(t, a.Text, "refused")
	})
	t.Run("no such host", func(t *testing.T) {
		t.Parallel()
		a := post(t.Context(), newClient(t, "http://billing.invalid", nil), "invoice:acme:2")
		require.Equal(t, once.NotSent, a.Class)
	})
	t.Run("not TLS", func(t *testing.T) {
		t.Parallel()
		s := newRawServer(t, func(_ int, c *net.TCPConn) { io.WriteString(c, "HTTP/1.1 400 plain\r\n\r\n") })
		a := post(t.Context(), newClient(t, "https://"+s.Addr().String(), nil), "invoice:acme:2")
		require.Equal(t, once.NotSent, a.Class, a.Text)
	})
	t.Run("TLS that never ends its handshake", func(t *testing.T) {
		t.Parallel()
		s := newRawServer(t, func(_ int, c *net.TCPConn) { io.Copy(io.Discard, c) })
		client := newClient(t, "https://"+s.Addr().String(), func(cfg *oncehttp.Config) { cfg.CallTimeout = 200 * time.Millisecond })
		a := post(t.Context(), client, "invoice:acme:2")
		require.Equal(t, once.NotSent, a.Class, a.Text)
	})
	t.Run("a certificate nobody knows", func(t *testing.T) {
		t.Parallel()
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		defer s.Close()
		a := post(t.Context(), newClient(t, s.URL, nil), "invoice:acme:2")
		require.Equal(t, once.NotSent, a.Class)
		require.Contains(t, a.Text, "certificate")
	})
	t.Run("the deadline has passed", func(t *testing.T) {
		t.Parallel()
		s := newRawServer(t, func(int, *net.TCPConn) {})
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		a := post(ctx, newClient(t, s.url(), nil), "invoice:acme:2")
		require.Equal(t, once.NotSent, a.Class)
		require.EqualError(t, a.Err, "the deadline had passed")
		require.Zero(t, s.accepted.Load(), "it must not even dial")
	})
	t.Run("cancelled before", func(t *testing.T) {
		t.Parallel()
		s := newRawServer(t, func(int, *net.TCPConn) {})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a := post(ctx, newClient(t, s.url(), nil), "invoice:acme:2")
		require.Equal(t, once.NotSent, a.Class)
		require.ErrorIs(t, a.Err, context.Canceled)
		require.Zero(t, s.accepted.Load())
	})
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, "http://127.0.0.1:1", nil)
		require.NoError(t, c.Close())
		a := post(t.Context(), c, "invoice:acme:2")
		require.Equal(t, once.NotSent, a.Class)
		require.EqualError(t, a.Err, "client closed")
	})
	t.Run("the caller went away", func(t *testing.T) {
		t.Parallel()
		reached := make(chan struct{}, 1)
		s := newRawServer(t, func(_ int, c *net.TCPConn) {
			readRequest(bufio.NewReader(c))
			reached <- struct{}{}
			io.Copy(io.Discard, c)
		})
		client := newClient(t, s.url(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan once.Answer)
		go func() { first <- post(ctx, client, "invoice:acme:2") }()
		<-reached
		cancel()
		require.Equal(t, once.Unclear, (<-first).Class, "it was sent")
		require.EqualValues(t, 1, s.accepted.Load())
	})
	t.Run("keys that can't travel", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, "http://127.0.0.1:1", nil)
		for _, key := range []string{"", "a b", "a\nb", ".", "..", "é", strings.Repeat("k", 256)} {
			a := post(t.Context(), c, key)
			require.Equal(t, once.Rejected, a.Class)
			require.ErrorContains(t, a.Err, "the idempotency key can't be sent")
			require.Equal(t, once.Rejected, find(t.Context(), c, key).Class)
		}
		require.True(t, c.Ready())
	})
}

func TestCallTimeoutAndCallersDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ call, caller time.Duration }{
		"the call's own limit": {2 * time.Second, time.Hour},
		"the caller's":         {time.Hour, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRawServer(t, answering("", true))
			client := newClient(t, s.url(), func(cfg *oncehttp.Config) { cfg.CallTimeout = c.call })
			began := time.Now() // not later than the deadline's own
			ctx, cancel := context.WithTimeout(t.Context(), c.caller)
			defer cancel()
			a := post(ctx, client, "invoice:acme:2")
			require.Equal(t, once.Unclear, a.Class)
			require.ErrorIs(t, a.Err, context.DeadlineExceeded)
			require.GreaterOrEqual(t, time.Since(began), 1900*time.Millisecond)
			require.Less(t, time.Since(began), time.Minute)
		})
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			mux := http.NewServeMux()
			mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				http.Redirect(w, r, "/elsewhere", status)
			})
			s := httptest.NewServer(mux)
			defer s.Close()
			client := newClient(t, s.URL, nil)
			a := post(t.Context(), client, "invoice:acme:2")
			require.Equal(t, once.Unrecognized, a.Class)
			require.EqualValues(t, 1, requests.Load())
			for n := range 2 {
				post(t.Context(), client, fmt.Sprint("invoice:acme:", 3+n))
			}
			require.Equal(t, 1.0, metric(t, client, misconfiguredNow), "no retry cures it")
		})
	}
}

const (
	breakerState     = "millrace_once_http_breaker_state"
	misconfiguredNow = "millrace_once_http_misconfigured"
	throttledSeconds = "millrace_once_http_throttled_seconds"
)

// metric returns the sum over the client's series with this name.
func metric(t *testing.T, c *oncehttp.Client, name string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c.Collectors()...)
	families, err := reg.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// keepAlive creates one invoice and then treats the next request of the same connection as second says.
func keepAlive(second func(c *net.TCPConn, body string)) func(int, *net.TCPConn) {
	return func(n int, c *net.TCPConn) {
		in := bufio.NewReader(c)
		if _, _, err := readRequest(in); err != nil {
			return
		}
		io.WriteString(c, ok(`{"id":"t-1"}`))
		if n > 1 {
			return
		}
		if _, body, err := readRequest(in); err == nil {
			second(c, body)
		}
	}
}

// onAReusedConnection repeats play until it reports a reused connection. net/http abandons a
// connection whose write was not reported within 50ms, which happens on a busy machine.
func onAReusedConnection(t *testing.T, play func() (reused bool)) {
	t.Helper()
	for range 10 {
		if play() {
			return
		}
	}
	require.FailNow(t, "the connection was never reused")
}

func TestTransportReplaysOnADeadReusedConnection(t *testing.T) {
	t.Parallel()
	onAReusedConnection(t, func() bool {
		seen := make(chan string, 1)
		s := newRawServer(t, keepAlive(func(c *net.TCPConn, body string) {
			seen <- body
			c.SetLinger(0)
		}))
		client := newClient(t, s.url(), nil)
		require.Equal(t, once.Done, post(t.Context(), client, "invoice:acme:2").Class)
		a := post(t.Context(), client, "invoice:acme:3")
		require.Equal(t, once.Done, a.Class, a.Text)
		require.EqualValues(t, 2, s.accepted.Load())
		if len(seen) == 0 {
			return false
		}
		require.Equal(t, []byte(body), []byte(<-seen), "the same bytes") //nolint:testifylint // equal as JSON is not enough
		require.Equal(t, 1.0, metric(t, client, "millrace_once_http_replays_total"))
		return true
	})
}

// A second answer arrives on an idle connection. It must not become the answer of the next call.
func TestALateAnswerIsNotTheNextCalls(t *testing.T) {
	t.Parallel()
	abandoned := make(chan struct{})
	s := newRawServer(t, func(n int, c *net.TCPConn) {
		if n > 1 {
			keepAliveForever(n, c)
			return
		}
		answering(ok(`{"id":"t-1"}`)+ok(`{"id":"late"}`), true)(n, c)
		close(abandoned)
	})
	client := newClient(t, s.url(), nil)
	require.Equal(t, once.Done, post(t.Context(), client, "invoice:acme:2").Class)
	<-abandoned
	a := post(t.Context(), client, "invoice:acme:3")
	require.Equal(t, "t-1", a.Receipt, a.Text)
	require.EqualValues(t, 2, s.accepted.Load())
}

// The first try was sent, and may have done the effect. The replay could not be sent.
func TestReplayThatCanNotBeSentIsAmbiguous(t *testing.T) {
	t.Parallel()
	onAReusedConnection(t, func() bool {
		var s *rawServer
		ready := make(chan struct{})
		s = newRawServer(t, keepAlive(func(c *net.TCPConn, _ string) {
			<-ready
			s.Close()
			c.SetLinger(0)
		}))
		close(ready)
		client := newClient(t, s.url(), nil)
		require.Equal(t, once.Done, post(t.Context(), client, "invoice:acme:2").Class)
		a := post(t.Context(), client, "invoice:acme:3")
		if s.accepted.Load() == 2 {
			return false
		}
		require.Contains(t, a.Text, "refused", "the test needs a replay that could not be dialled")
		require.Equal(t, once.Unclear.String(), a.Class.String())
		return true
	})
}

func TestMetricsAreWellNamed(t *testing.T) {
	t.Parallel()
	s := newRawServer(t, answering(ok(`{"id":"t-1"}`), true))
	client := newClient(t, s.url(), nil)
	require.Equal(t, once.Done, post(t.Context(), client, "invoice:acme:2").Class)
	for _, c := range client.Collectors() {
		problems, err := testutil.CollectAndLint(c)
		require.NoError(t, err)
		require.Empty(t, problems)
	}
	require.Equal(t, 1.0, metric(t, client, "millrace_once_http_calls_total"))
	require.Equal(t, 1.0, metric(t, client, "millrace_once_http_call_duration_seconds"))
	require.Equal(t, 256.0, metric(t, client, "millrace_once_http_in_flight_limit"))
	require.Zero(t, metric(t, client, "millrace_once_http_breaker_state"))
}

// keepAliveForever creates every invoice of a connection.
func keepAliveForever(_ int, c *net.TCPConn) {
	in := bufio.NewReader(c)
	for {
		if _, _, err := readRequest(in); err != nil {
			return
		}
		io.WriteString(c, ok(`{"id":"t-1"}`))
	}
}
