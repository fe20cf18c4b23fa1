package kafka

import (
	"net"
	"sync"
	"time"
)

// dialer opens the connections of a subscription and can cut them. sarama's client does not end a
// request that waits for its answer. A join, for instance, is answered when the slowest member of
// the group has joined.
type dialer struct {
	net.Dialer
	mu    sync.Mutex
	open  map[*severable]struct{}
	ended bool
}

func newDialer(timeout time.Duration) *dialer {
	return &dialer{Dialer: net.Dialer{Timeout: timeout}, open: map[*severable]struct{}{}}
}

// severable is a connection that its dialer can cut.
type severable struct {
	net.Conn
	from *dialer
}

// Close implements net.Conn.
func (c *severable) Close() error {
	c.from.mu.Lock()
	delete(c.from.open, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}

// Dial implements proxy.Dialer, sarama's way to another dialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c := &severable{conn, d}
	d.open[c] = struct{}{}
	return c, nil
}

// cut ends all connections. Requests that wait for an answer fail; later ones use new connections.
func (d *dialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.open {
		_ = c.Conn.Close()
	}
}

// end cuts all connections and refuses new ones.
func (d *dialer) end() {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.cut()
}
