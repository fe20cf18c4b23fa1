package oncehttp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
)

// openClient returns a client of the API at url, and what it has opened.
func openClient(t *testing.T, url string) (*Client, *connection) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.URL = url
	client := New(&cfg, Mapping{Name: "billing", Receipt: []string{"id"}})
	require.NoError(t, client.Open(nil))
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client, client.opened.Load()
}

// create posts a request with a body of this length.
func create(ctx context.Context, c *Client, body int) once.Answer {
	return Post(ctx, c, "/v1/invoices", once.Attempt[int]{Repeat: once.ByKey, Idempotency: "K:1:1", Request: []byte(strings.Repeat("x", body))})
}

// brokenPipe is a connection on which only the first n bytes can be written.
type brokenPipe struct {
	net.Conn
	n atomic.Int64
}

func (c *brokenPipe) Write(p []byte) (int, error) {
	if left := c.n.Load(); int64(len(p)) > left {
		c.n.Store(0)
		n, _ := c.Conn.Write(p[:left])
		return n, errors.New("broken pipe")
	}
	c.n.Add(-int64(len(p)))
	return c.Conn.Write(p)
}

// A failed write is NotSent only if no byte was written. httptrace.WroteRequest is wrong about the
// first case and the last.
func TestFailedWrite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fits  int64
		body  int
		class once.Class
	}{
		"nothing left":             {0, 64, once.NotSent},
		"one byte left":            {1, 64, once.Unclear},
		"a part of the body left":  {6000, 100_000, once.Unclear},
		"nothing of a large one":   {0, 100_000, once.NotSent},
		"all but the last byte is": {200, 64, once.Unclear},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					defer c.Close()
					io.Copy(io.Discard, c)
				}
			}()
			client, n := openClient(t, "http://"+l.Addr().String())
			n.transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				raw, err := n.dialer.net.DialContext(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				p := &brokenPipe{Conn: raw}
				p.n.Store(c.fits)
				return &conn{Conn: p, clock: systemClock}, nil
			}}
			a := create(t.Context(), client, c.body)
			require.Equal(t, c.class.String(), a.Class.String(), a.Text)
			require.Error(t, a.Err) // of the write, or of the read that its end interrupted
		})
	}
}

// A connection that does not count its bytes counts as sent.
func TestForeignConnectionCountsAsSent(t *testing.T) {
	t.Parallel()
	client, n := openClient(t, "http://127.0.0.1:1")
	n.transport = &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		b.Close()
		return a, nil
	}}
	require.Equal(t, once.Unclear, create(t.Context(), client, 64).Class)
}

func TestNothingIsWrittenAfterTheDeadline(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer there.Close()
	defer here.Close()
	go io.Copy(io.Discard, there)
	c := &conn{Conn: here, clock: systemClock}
	_, err := c.Write([]byte("handshake"))
	require.NoError(t, err)
	past, future := time.Now().Add(-time.Nanosecond), time.Now().Add(time.Hour)
	c.notAfter.Store(&past)
	_, err = c.Write([]byte("late"))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.EqualValues(t, len("handshake"), c.written.Load())
	c.notAfter.Store(&future)
	_, err = c.Write([]byte("early"))
	require.NoError(t, err)
}

// frozen is the context of a process that was frozen and woke up after its deadline: no timer has
// fired yet.
type frozen struct {
	context.Context
	asked atomic.Int32
	after int32 // how often the deadline is still ahead
}

func (f *frozen) Deadline() (time.Time, bool) {
	if f.asked.Add(1) <= f.after {
		return time.Now().Add(time.Hour), true
	}
	return time.Now().Add(-time.Second), true
}

func TestFrozenProcessDoesNotCall(t *testing.T) {
	t.Parallel()
	var accepted, received atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			n, _ := io.Copy(io.Discard, c)
			received.Add(n)
			c.Close()
		}
	}()
	client, _ := openClient(t, "http://"+l.Addr().String())

	a := create(&frozen{Context: t.Context()}, client, 64)
	require.Equal(t, once.NotSent, a.Class)
	require.ErrorIs(t, a.Err, errDeadline)
	require.Zero(t, accepted.Load(), "it must not even dial")

	// Frozen after that look at the clock: it dials, and then writes nothing.
	a = create(&frozen{Context: t.Context(), after: 1}, client, 64)
	require.Equal(t, once.NotSent, a.Class)
	require.ErrorIs(t, a.Err, os.ErrDeadlineExceeded)
	require.NoError(t, client.Close())
	require.NoError(t, l.Close())
	<-served
	require.Zero(t, received.Load())
}

// Only one clock has reached the end of the lease: the monotonic clock stood still, or the wall
// clock was set back.
func TestSuspendedMachineDoesNotCall(t *testing.T) {
	t.Parallel()
	ahead := func(by time.Duration) clock {
		return func() (now, wall time.Time) { return time.Now(), time.Now().Round(0).Add(by) }
	}
	deadline := time.Now().Add(30 * time.Minute)
	require.False(t, ahead(0).passed(deadline))
	require.True(t, ahead(time.Hour).passed(deadline), "suspended")
	require.True(t, ahead(-time.Hour).passed(time.Now()), "set back")
	require.False(t, ahead(-time.Hour).passed(deadline))

	here, there := net.Pipe()
	defer there.Close()
	defer here.Close()
	c := &conn{Conn: here, clock: ahead(time.Hour)}
	c.notAfter.Store(&deadline)
	_, err := c.Write([]byte("late"))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	client, n := openClient(t, "http://127.0.0.1:1")
	n.dialer.clock = ahead(time.Hour)
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	a := create(ctx, client, 64)
	require.Equal(t, once.NotSent, a.Class)
	require.ErrorIs(t, a.Err, errDeadline)
}

func TestBuildKeepsTheTemplate(t *testing.T) {
	t.Parallel()
	_, n := openClient(t, "http://127.0.0.1:1/base/")
	template, err := n.targets.request(http.MethodPost, "/v1/invoices", once.Key{}, "")
	require.NoError(t, err)
	again, err := n.targets.request(http.MethodPost, "/v1/invoices", once.Key{}, "another")
	require.NoError(t, err)
	require.Same(t, template, again)
	require.Equal(t, "http://127.0.0.1:1/base/v1/invoices", template.URL.String())
	cred := newCredential("tok", nil)
	req := n.build(t.Context(), template, &request{key: "invoice:1:2", body: []byte("{}")}, cred)
	require.Equal(t, http.Header{
		"Accept": {"application/json"}, "Content-Type": {"application/json"},
		"Idempotency-Key": {"invoice:1:2"}, "Authorization": {"Bearer tok"},
	}, req.Header)
	require.Len(t, cred.header, 2, "another request has another key")
	require.Nil(t, template.Header)
	require.Nil(t, template.Body)
}

// Bytes of an earlier connection count as sent, though the next connection sends none.
func TestSentIsRememberedOverConnections(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer there.Close()
	defer here.Close()
	go io.Copy(io.Discard, there)
	first, second := &conn{Conn: here, clock: systemClock}, &conn{Conn: here}
	_, err := first.Write([]byte("another request"))
	require.NoError(t, err)
	f := newSendTracker(time.Now().Add(time.Hour), false)
	require.False(t, f.sent())
	f.gotConn(httptrace.GotConnInfo{Conn: first})
	require.False(t, f.sent())
	f.gotConn(httptrace.GotConnInfo{Conn: first})
	require.False(t, f.sent(), "an earlier request's bytes are not this one's")
	_, err = first.Write([]byte("request"))
	require.NoError(t, err)
	require.True(t, f.sent())
	f.gotConn(httptrace.GotConnInfo{Conn: second})
	require.True(t, f.sent())
	require.Equal(t, 3, f.conns)
}

func TestTokensAreRenewedOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("old\n"), 0o600))
	var secret setting.Secret
	require.NoError(t, secret.UnmarshalText([]byte("file:"+file)))
	tokens := newTokens("billing", secret, nil, nil)
	old := tokens.get(t.Context())
	require.False(t, tokens.renew(t.Context(), old), "the file has nothing new")
	require.NoError(t, os.WriteFile(file, []byte("new\n"), 0o600))
	require.True(t, tokens.renew(t.Context(), old))
	require.Equal(t, "Bearer new", tokens.current.Load().header.Get("Authorization"))

	require.NoError(t, os.Remove(file))
	require.True(t, tokens.renew(t.Context(), old), "a late call with the old token gets the new one, without the file")
	require.False(t, tokens.renew(t.Context(), tokens.current.Load()))
	require.Equal(t, "new", tokens.current.Load().token)
	require.NoError(t, os.WriteFile(file, []byte("two\nlines\n"), 0o600))
	require.False(t, tokens.renew(t.Context(), tokens.current.Load()), "it can't be sent")
}
