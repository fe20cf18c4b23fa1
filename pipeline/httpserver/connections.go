package httpserver

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// Limits are those of the connections of one server. A connection beyond one of them is accepted
// and closed at once, so that its client knows.
type Limits struct {
	Total int // > 0
	// PerAddress is the limit of one network (see Network). Zero: none.
	PerAddress int
	// Exempt reports whether PerAddress does not apply to an address, such as that of a proxy, which
	// has the connections of many clients. Nil: it applies to all.
	Exempt func(netip.Addr) bool
}

// Reasons why a connection is refused.
const (
	reasonFull        = "full"        // Limits.Total
	reasonAddress     = "address"     // Limits.PerAddress
	reasonDescriptors = "descriptors" // the system has no file descriptor for it
)

const warnEvery = time.Minute

// Connections has the metrics and the warnings about the connections of one server. Build it with
// NewConnections.
type Connections struct {
	open    prometheus.Gauge
	refused *prometheus.CounterVec
	sampled map[string]*logs.Throttle // by reason
}

// NewConnections returns the Connections of a server whose metrics begin with prefix, such as
// millrace_web.
func NewConnections(prefix string) *Connections {
	c := &Connections{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "_connections", Help: "Connections of clients that are open.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_refused_connections_total",
			Help: "Connections refused, by reason: full (limit of the server), address (limit of one address), descriptors (none is free).",
		}, []string{"reason"}),
		sampled: map[string]*logs.Throttle{},
	}
	for _, reason := range []string{reasonFull, reasonAddress, reasonDescriptors} {
		c.sampled[reason] = logs.NewThrottle(warnEvery)
		c.refused.WithLabelValues(reason)
	}
	return c
}

// Collectors returns the metrics.
func (c *Connections) Collectors() []prometheus.Collector {
	return []prometheus.Collector{c.open, c.refused}
}

// Listen returns l with limits. Refused connections are counted, and logged as one warning per
// reason and minute.
func (c *Connections) Listen(l net.Listener, limits Limits, log *slog.Logger) net.Listener {
	return &listener{Listener: l, connections: c, limits: limits, log: log, byNetwork: map[netip.Prefix]int{}}
}

func (c *Connections) refuse(log *slog.Logger, reason string, attrs ...slog.Attr) {
	c.refused.WithLabelValues(reason).Inc()
	c.sampled[reason].Warn(log, "connection refused", append([]slog.Attr{slog.String("reason", reason)}, attrs...)...)
}

type listener struct {
	net.Listener
	connections *Connections
	limits      Limits
	log         *slog.Logger

	mu        sync.Mutex // guards what follows
	open      int
	byNetwork map[netip.Prefix]int // without those that are exempt
}

// Accept implements net.Listener. After the error of a system without a free descriptor, net/http
// calls it again.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			if exhausted(err) {
				l.connections.refuse(l.log, reasonDescriptors, logs.Err(err))
			}
			return nil, err
		}
		from := Network(addressOf(accepted))
		exempt := !from.IsValid() || l.limits.PerAddress <= 0 || l.limits.Exempt != nil && l.limits.Exempt(from.Addr())
		if exempt {
			from = netip.Prefix{}
		}
		reason, limit := l.take(from)
		if reason == "" {
			l.connections.open.Inc()
			return l.wrap(accepted, from), nil
		}
		l.connections.refuse(l.log, reason, slog.String("address", accepted.RemoteAddr().String()), slog.Int("limit", limit))
		if tcp, ok := accepted.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the system keeps nothing of it
		}
		_ = accepted.Close()
	}
}

// take counts a connection, or returns the limit that it exceeds. An invalid network has no limit
// of its own.
func (l *listener) take(from netip.Prefix) (reason string, limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open >= l.limits.Total:
		return reasonFull, l.limits.Total
	case from.IsValid() && l.byNetwork[from] >= l.limits.PerAddress:
		return reasonAddress, l.limits.PerAddress
	}
	l.open++
	if from.IsValid() {
		l.byNetwork[from]++
	}
	return "", 0
}

func (l *listener) release(from netip.Prefix) {
	l.connections.open.Dec()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if !from.IsValid() {
		return
	}
	if l.byNetwork[from]--; l.byNetwork[from] == 0 {
		delete(l.byNetwork, from)
	}
}

func (l *listener) wrap(c net.Conn, from netip.Prefix) net.Conn {
	if tcp, ok := c.(*net.TCPConn); ok {
		return &tcpConn{TCPConn: tcp, counted: counted{listener: l, from: from}}
	}
	return &conn{Conn: c, counted: counted{listener: l, from: from}}
}

// counted is the place of a connection within the limits.
type counted struct {
	listener *listener
	from     netip.Prefix
	closed   atomic.Bool
}

func (c *counted) end() {
	if !c.closed.Swap(true) {
		c.listener.release(c.from)
	}
}

// tcpConn has all methods of a TCP connection: net/http uses those that send files and that end one
// direction.
type tcpConn struct {
	*net.TCPConn
	counted
}

// Close implements net.Conn.
func (c *tcpConn) Close() error {
	defer c.end()
	return c.TCPConn.Close()
}

type conn struct {
	net.Conn
	counted
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// Network returns the network that counts as one client: an IPv4 address, or 64 bits of an IPv6
// address, because a provider gives that many to one customer. It is invalid for an invalid address.
func Network(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	network, _ := a.Prefix(bits)
	return network
}

func addressOf(c net.Conn) netip.Addr {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	return netip.Addr{}
}

// exhausted reports whether the process or the system has no descriptor or memory for a connection.
func exhausted(err error) bool {
	for _, cause := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}
