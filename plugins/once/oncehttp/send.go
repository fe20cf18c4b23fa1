package oncehttp

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// clock returns a time with a monotonic reading, and one without. The monotonic clock of Linux
// stands still while a machine is suspended, and the wall clock may be set back.
type clock func() (now, wall time.Time)

func systemClock() (now, wall time.Time) {
	now = time.Now()
	return now, now.Round(0)
}

// passed reports whether at has passed on either clock.
func (c clock) passed(at time.Time) bool {
	now, wall := c()
	return !now.Before(at) || !wall.Before(at.Round(0))
}

// conn counts the bytes written, and writes none after the deadline of its current call.
type conn struct {
	net.Conn
	clock    clock
	written  atomic.Int64
	notAfter atomic.Pointer[time.Time] // nil: no deadline, as during a TLS handshake
}

func (c *conn) Write(p []byte) (int, error) {
	if at := c.notAfter.Load(); at != nil && c.clock.passed(*at) {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// sendTracker tracks one call over the connections that the Transport gives it. It needs no lock:
// GotConn runs on the goroutine of RoundTrip, which does not fail before its write loop has ended.
type sendTracker struct {
	trace    httptrace.ClientTrace
	deadline time.Time
	conn     *conn // the latest; nil if it is not one of ours
	before   int64 // bytes written to conn before this call
	conns    int   // number of connections of the call
	earlier  bool  // bytes were sent on an earlier connection, or on one that is not ours

	token atomic.Pointer[string] // of OAuth2, as it was sent; nil: none
}

// newSendTracker returns the tracker of a call. fetched says that the Transport adds a token by itself.
func newSendTracker(deadline time.Time, fetched bool) *sendTracker {
	s := &sendTracker{deadline: deadline}
	s.trace.GotConn = s.gotConn
	if fetched {
		s.trace.WroteHeaderField = s.wroteHeader
	}
	return s
}

// wroteHeader runs on the goroutine that writes the request, which may go on after an early answer.
func (s *sendTracker) wroteHeader(name string, values []string) {
	if name == "Authorization" && len(values) == 1 {
		_, token, _ := strings.Cut(values[0], " ")
		s.token.Store(&token)
	}
}

func (s *sendTracker) gotConn(info httptrace.GotConnInfo) {
	s.earlier = s.sent()
	s.conns++
	raw := info.Conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	var ours bool
	if s.conn, ours = raw.(*conn); !ours {
		s.earlier = true
		return
	}
	s.before = s.conn.written.Load()
	s.conn.notAfter.Store(&s.deadline)
}

// sent reports whether a byte of the call may have been sent. It is valid after RoundTrip.
func (s *sendTracker) sent() bool {
	return s.earlier || s.conn != nil && s.conn.written.Load() != s.before
}

type dialer struct {
	net   net.Dialer
	clock clock
	life  context.Context // ends when the client is closed
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	// The Transport continues a dial after the end of its request, to use it for the next one. A
	// closed client ends it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(d.life, cancel)
	defer stop()
	c, err := d.net.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, clock: d.clock}, nil
}
