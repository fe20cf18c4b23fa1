package faults

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Proxy is a TCP proxy in front of a server. It can slow answers down, cut or silence connections,
// and lead to another server. The zero Proxy is not usable; it is safe for concurrent use.
type Proxy struct {
	ln net.Listener
	wg sync.WaitGroup

	mu      sync.Mutex
	target  string
	conns   map[net.Conn]struct{}
	delay   time.Duration
	cutEach int // the connection is cut instead of every so-manieth piece of an answer; 0: never
	answers int
	cuts    int
	opened  int // number of the newest connection
	silent  int // connections up to this number carry nothing
	closed  bool
}

// NewProxy listens on a free loopback port.
func NewProxy(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it returns at once
	if err != nil {
		return nil, err
	}
	p := &Proxy{ln: ln, target: target, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close ends all connections and waits for what served them.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.ln.Close()
	p.Cut()
	p.wg.Wait()
	return err
}

// Retarget leads to another server from now on and cuts what leads to the old one. It returns that.
func (p *Proxy) Retarget(addr string) (before string) {
	p.mu.Lock()
	before, p.target = p.target, addr
	p.mu.Unlock()
	p.Cut()
	return before
}

// SetDelay makes every piece of an answer late.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	p.delay = d
	p.mu.Unlock()
}

// CutAnswers cuts the connection instead of passing every nth piece of an answer on: the command
// has run. 0 ends it.
func (p *Proxy) CutAnswers(nth int) {
	p.mu.Lock()
	p.cutEach = nth
	p.mu.Unlock()
}

// Cuts is how many answers were cut off so far.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Silence loses everything on the open connections from now on, in both directions, and closes none
// of them. New connections work.
func (p *Proxy) Silence() {
	p.mu.Lock()
	p.silent = p.opened
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

func (p *Proxy) accept() {
	for {
		in, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.wg.Go(func() { p.serve(in) })
	}
}

func (p *Proxy) serve(in net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	out, err := net.Dial("tcp", target) //nolint:noctx // loopback
	if err != nil {
		_ = in.Close()
		return
	}
	p.mu.Lock()
	if p.closed || p.target != target {
		p.mu.Unlock()
		_, _ = in.Close(), out.Close()
		return
	}
	p.conns[in], p.conns[out] = struct{}{}, struct{}{}
	p.opened++
	number := p.opened
	p.mu.Unlock()
	var both sync.WaitGroup
	end := func() { _, _ = in.Close(), out.Close() }
	both.Go(func() { defer end(); p.pump(out, in, number, false) })
	both.Go(func() { defer end(); p.pump(in, out, number, true) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, in)
	delete(p.conns, out)
	p.mu.Unlock()
}

// piece is what one read has brought, and when it may be passed on.
type piece struct {
	data []byte
	due  time.Time
}

// pump copies. A delayed piece does not delay the reading of the next one.
func (p *Proxy) pump(dst, src net.Conn, number int, answers bool) {
	late := make(chan piece, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		for one := range late {
			if wait := time.Until(one.due); wait > 0 {
				<-time.After(wait)
			}
			if _, err := dst.Write(one.data); err != nil {
				_ = src.Close() // ends the reading
			}
		}
	})
	defer func() { close(late); writer.Wait() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 && !p.silenced(number) {
			delay, cut := p.fate(answers)
			if cut {
				return
			}
			late <- piece{append([]byte(nil), buf[:n]...), time.Now().Add(delay)}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) silenced(number int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return number <= p.silent
}

// fate says what happens to a piece.
func (p *Proxy) fate(answer bool) (delay time.Duration, cut bool) {
	if !answer {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers++
	if p.cutEach > 0 && p.answers%p.cutEach == 0 {
		p.cuts++
		return 0, true
	}
	return p.delay, false
}
