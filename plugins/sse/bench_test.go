package sse_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/sse"
)

// BenchmarkOneEventToManyClients sends one event to all clients and waits until each has it. With
// "memory" there are no sockets: the CPU time is that of the hub and of net/http. With "loopback"
// there is TCP, and the clients are in the same process.
func BenchmarkOneEventToManyClients(b *testing.B) {
	b.Run("memory/10000", func(b *testing.B) { benchmarkFanOut(b, 10_000, newMemoryCrowd) })
	b.Run("loopback/1000", func(b *testing.B) { benchmarkFanOut(b, 1_000, newLoopbackCrowd) })
	b.Run("loopback/9000", func(b *testing.B) {
		const descriptors = 2*9_000 + 100
		var limit syscall.Rlimit
		require.NoError(b, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
		if limit.Cur < descriptors {
			b.Skipf("%d file descriptors are needed, the limit is %d", descriptors, limit.Cur)
		}
		benchmarkFanOut(b, 9_000, newLoopbackCrowd)
	})
}

func benchmarkFanOut(b *testing.B, clients int, of func(*testing.B) *crowd) {
	before := used()
	c := of(b)
	for range clients {
		c.connect(false)
	}
	perConn := float64(used()-before) / float64(clients)
	event := sse.Event{ID: "1", Name: "event", Data: make([]byte, 200)}
	c.measure(1, event)
	var half, most []time.Duration
	pipelinetest.ReportCPU(b, clients, func() {
		p50, p99 := c.measure(1, event)
		half, most = append(half, p50), append(most, p99)
	})
	b.ReportMetric(perConn, "B/conn")
	b.ReportMetric(median(half).Seconds()*1e3, "p50-ms")
	b.ReportMetric(median(most).Seconds()*1e3, "p99-ms")
}

// BenchmarkAClientThatStopsReading compares the delays of the others with and without it, in pairs
// of rounds of the same run. It reports the median of the ratios.
func BenchmarkAClientThatStopsReading(b *testing.B) {
	for name, of := range map[string]func(*testing.B) *crowd{"memory": newMemoryCrowd, "loopback": newLoopbackCrowd} {
		b.Run(name, func(b *testing.B) {
			const clients, rounds, pairs = 1_000, 20, 5
			c := of(b)
			for range clients {
				c.connect(false)
			}
			event := sse.Event{Name: "event", Data: make([]byte, 8<<10)}
			c.measure(rounds, event)
			var half, most []float64
			for b.Loop() {
				for range pairs {
					quiet50, quiet99 := c.measure(rounds, event)
					c.stuck = c.connect(true)
					stuck50, stuck99 := c.measure(rounds, event)
					require.Positive(b, c.unread(), "the client reads")
					c.stuck = nil
					half = append(half, float64(stuck50)/float64(quiet50))
					most = append(most, float64(stuck99)/float64(quiet99))
				}
			}
			b.ReportMetric(median(half), "p50-ratio")
			b.ReportMetric(median(most), "p99-ratio")
		})
	}
}

func median[T time.Duration | float64](list []T) T {
	slices.Sort(list)
	return list[len(list)/2]
}

// used returns the bytes of the heap and of the stacks.
func used() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// crowd is a hub with many clients, which note when they have received an event.
type crowd struct {
	b         *testing.B
	rig       *rig
	dial      func(*receiver) io.Closer
	clients   []*sse.Client
	receivers []*receiver
	stuck     *sse.Client // gets the events, too, and is not waited for
	sent      time.Time   // of the event that is under way
	remaining atomic.Int64
	done      chan struct{}
}

// receiver is a client's end.
type receiver struct {
	crowd  *crowd
	stuck  bool
	delays []time.Duration // from the first Send of an event
}

func (r *receiver) received() {
	r.delays = append(r.delays, time.Since(r.crowd.sent))
	if r.crowd.remaining.Add(-1) == 0 {
		r.crowd.done <- struct{}{}
	}
}

// measure sends events one after another, and returns the median of the delays and their p99.
func (c *crowd) measure(rounds int, e sse.Event) (p50, p99 time.Duration) {
	for range rounds {
		e := e.Prepare()
		c.remaining.Store(int64(len(c.clients)))
		c.sent = time.Now()
		if c.stuck != nil {
			c.stuck.Send(e)
		}
		for _, client := range c.clients {
			if !client.Send(e) {
				c.b.Error("a client was disconnected")
			}
		}
		<-c.done
	}
	var delays []time.Duration
	for _, r := range c.receivers {
		delays = append(delays, r.delays...)
		r.delays = r.delays[:0]
	}
	slices.Sort(delays)
	return delays[len(delays)/2], delays[len(delays)*99/100]
}

// unread returns how many events are in queues and in unfinished writes.
func (c *crowd) unread() float64 { return c.rig.metric("queue_events", "") }

// connect opens a stream. One that is stuck reads nothing, and is not among the clients.
func (c *crowd) connect(stuck bool) *sse.Client {
	r := &receiver{crowd: c, stuck: stuck}
	conn := c.dial(r)
	c.b.Cleanup(func() { _ = conn.Close() })
	client := <-c.rig.joined
	if !stuck {
		c.clients, c.receivers = append(c.clients, client), append(c.receivers, r)
	}
	return client
}

// newCrowd serves a hub at l. Heartbeats are off.
func newCrowd(b *testing.B, l net.Listener) *crowd {
	c := &crowd{b: b, rig: newHub(b), done: make(chan struct{}, 1)}
	server := &http.Server{Handler: c.rig}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	b.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return c
}

const request = "GET / HTTP/1.1\r\nHost: hub\r\n\r\n"

func newLoopbackCrowd(b *testing.B) *crowd {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	c := newCrowd(b, smallBuffers{l})
	var running sync.WaitGroup
	b.Cleanup(running.Wait)
	c.dial = func(r *receiver) io.Closer {
		conn, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
		require.NoError(b, err)
		if r.stuck {
			require.NoError(b, conn.SetReadBuffer(4<<10))
		}
		_, err = conn.Write([]byte(request))
		require.NoError(b, err)
		if !r.stuck {
			running.Go(func() { r.read(conn) })
		}
		return conn
	}
	return c
}

// smallBuffers is a listener whose connections can't hold the events of a whole measurement.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = errors.Join(err, tcp.SetWriteBuffer(16<<10))
	}
	return conn, err
}

func (r *receiver) read(conn net.Conn) {
	text := make([]byte, 512)
	started := false
	for {
		n, err := conn.Read(text)
		if err != nil {
			return
		}
		// The first empty line is that of retry.
		for range bytes.Count(text[:n], []byte("\n\n")) {
			if started {
				r.received()
			}
			started = true
		}
	}
}

// memoryConn is the server's end of a connection. Its writes are received at once, or never.
type memoryConn struct {
	net.Conn // nil; what the server does not use
	*receiver
	asked, started bool
	closed         chan struct{}
	once           sync.Once
}

func newMemoryCrowd(b *testing.B) *crowd {
	l := memoryListener{make(chan net.Conn), make(chan struct{})}
	c := newCrowd(b, l)
	c.dial = func(r *receiver) io.Closer {
		conn := &memoryConn{receiver: r, closed: make(chan struct{})}
		l.conns <- conn
		return conn
	}
	return c
}

type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l memoryListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l memoryListener) Close() error   { close(l.closed); return nil }
func (l memoryListener) Addr() net.Addr { return &net.UnixAddr{} }

func (m *memoryConn) Read(p []byte) (int, error) {
	if !m.asked {
		m.asked = true
		return copy(p, request), nil
	}
	<-m.closed
	return 0, io.EOF
}

func (m *memoryConn) Write(p []byte) (int, error) {
	if m.stuck && m.started {
		<-m.closed
		return 0, io.ErrClosedPipe
	}
	if !m.started {
		m.started = true // the headers and retry
	} else if bytes.HasSuffix(p, []byte("\n\n\r\n")) {
		m.received()
	}
	return len(p), nil
}

func (m *memoryConn) Close() error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

func (m *memoryConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (m *memoryConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (m *memoryConn) SetDeadline(time.Time) error      { return nil }
func (m *memoryConn) SetReadDeadline(time.Time) error  { return nil }
func (m *memoryConn) SetWriteDeadline(time.Time) error { return nil }
