package redistest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Proxy is a TCP proxy in front of a server whose connections can be cut.
type Proxy struct {
	ln     net.Listener
	target string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	down  bool
	muted bool // accepts, and never answers
	delay time.Duration
	wg    sync.WaitGroup
}

// NewProxy starts a proxy, which ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{ln: ln, target: target, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

func (p *Proxy) accept() {
	for {
		in, err := p.ln.Accept()
		if err != nil {
			return
		}
		if p.keepMuted(in) {
			continue
		}
		out, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.target)
		if err != nil || !p.keep(in, out) {
			_ = in.Close()
			if out != nil {
				_ = out.Close()
			}
			continue
		}
		p.wg.Go(func() { p.pump(p.late(in), out) })
		p.wg.Go(func() { p.pump(out, in) })
	}
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return false
	}
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return true
}

// SetDelay makes answers on new connections arrive later by d, like those of a distant server.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// late returns c with delayed writes.
func (p *Proxy) late(c net.Conn) net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.delay == 0 {
		return c
	}
	l := &lateConn{Conn: c, delay: p.delay, writes: make(chan lateWrite, 1024)}
	p.wg.Go(l.run)
	return l
}

// lateConn is a connection on which each write happens later.
type lateConn struct {
	net.Conn
	delay  time.Duration
	writes chan lateWrite
	once   sync.Once
}

type lateWrite struct {
	at   time.Time
	data []byte
}

func (c *lateConn) Write(data []byte) (int, error) {
	c.writes <- lateWrite{time.Now().Add(c.delay), bytes.Clone(data)}
	return len(data), nil
}

func (c *lateConn) Close() error {
	c.once.Do(func() { close(c.writes) })
	return c.Conn.Close()
}

func (c *lateConn) run() {
	for w := range c.writes {
		<-time.After(time.Until(w.at))
		_, _ = c.Conn.Write(w.data)
	}
}

func (p *Proxy) pump(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	_ = dst.Close()
	_ = src.Close()
	p.mu.Lock()
	delete(p.conns, dst)
	delete(p.conns, src)
	p.mu.Unlock()
}

// Cut closes all connections, in the middle of whatever they carry.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// SetDown refuses new connections too, until it is called with false.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	if down {
		p.Cut()
	}
}

// Mute makes the proxy accept connections and never answer on them.
func (p *Proxy) Mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted = true
}

func (p *Proxy) keepMuted(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := p.muted && !p.down
	if keep {
		p.conns[c] = struct{}{}
	}
	return keep
}
