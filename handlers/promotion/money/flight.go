package money

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"os"
	"sync/atomic"
	"time"
)

// clock reads the time twice. A lease is over as soon as the monotonic clock or the wall clock says so: the monotonic clock
// of Linux stands still while a machine is suspended, and the wall clock may be set back.
type clock struct {
	now  func() time.Time // with a monotonic reading
	wall func() time.Time // without one
}

func systemClock() clock {
	return clock{now: time.Now, wall: func() time.Time { return time.Now().Round(0) }}
}

// passed reports whether at has passed on either clock.
func (c clock) passed(at time.Time) bool {
	return !c.now().Before(at) || !c.wall().Before(at.Round(0))
}

// conn counts the bytes that leave, and lets none leave after the deadline of the call it serves.
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

// flight follows one call through the connections that the Transport gives it. GotConn runs on the
// goroutine that called RoundTrip, and RoundTrip does not fail before its write loop has ended, so
// there is nothing to lock.
type flight struct {
	trace    httptrace.ClientTrace
	deadline time.Time
	conn     *conn // the latest; nil if it is not one of ours
	before   int64 // what conn had written before this call
	conns    int   // how many connections the call was given
	left     bool  // bytes left on an earlier connection, or on one that can't tell
}

func newFlight(deadline time.Time) *flight {
	f := &flight{deadline: deadline}
	f.trace.GotConn = f.gotConn
	return f
}

func (f *flight) gotConn(info httptrace.GotConnInfo) {
	f.left = f.sent()
	f.conns++
	raw := info.Conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	var ours bool
	if f.conn, ours = raw.(*conn); !ours {
		f.left = true
		return
	}
	f.before = f.conn.written.Load()
	f.conn.notAfter.Store(&f.deadline)
}

// sent reports whether anything of the call may have left the process. Valid after RoundTrip.
func (f *flight) sent() bool {
	return f.left || f.conn != nil && f.conn.written.Load() != f.before
}

// dialer opens counted connections that die with the client.
type dialer struct {
	net   net.Dialer
	clock clock
	life  context.Context // ends when the client is closed
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	// The Transport lets a dial go on when its request has ended, for the next one; not so when
	// the client is closed.
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
