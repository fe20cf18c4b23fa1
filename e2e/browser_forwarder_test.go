package e2e

import (
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// briefHeartbeat makes pages take a stream as lost after 7 s.
const briefHeartbeat = "MILLRACE__PLUGINS__SSE__HEARTBEAT=1s"

// forwarder forwards connections to a server. It can lose those that are open without a word to the
// browser, as a NAT, a change of the network or a sleeping phone does.
type forwarder struct {
	ln net.Listener

	mu       sync.Mutex
	target   string
	open     []*forwarded
	accepted int
	wg       sync.WaitGroup
}

type forwarded struct {
	in, out net.Conn
	lost    bool
}

// newForwarder returns a forwarder to the address of a server, http://host:port.
func newForwarder(t *testing.T, url string) *forwarder {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &forwarder{ln: ln, target: strings.TrimPrefix(url, "http://")}
	f.wg.Go(f.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		f.mu.Lock()
		for _, c := range f.open {
			_, _ = c.in.Close(), c.out.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

func (f *forwarder) url() string { return "http://" + f.ln.Addr().String() }

// connections is how many the browser has opened.
func (f *forwarder) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.accepted
}

// lose closes the server's side of all connections and leaves that of the browser open. New
// connections go to the server at url.
func (f *forwarder) lose(url string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = strings.TrimPrefix(url, "http://")
	for _, c := range f.open {
		c.lost = true
		_ = c.out.Close()
	}
}

// redirect leaves all connections as they are. New ones go to the server at url.
func (f *forwarder) redirect(url string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = strings.TrimPrefix(url, "http://")
}

func (f *forwarder) accept() {
	for {
		in, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		out, err := net.Dial("tcp", f.target)
		if err != nil {
			f.mu.Unlock()
			_ = in.Close()
			continue
		}
		c := &forwarded{in: in, out: out}
		f.open = append(f.open, c)
		f.accepted++
		f.mu.Unlock()
		f.wg.Go(func() { f.pump(c, c.in, c.out) })
		f.wg.Go(func() { f.pump(c, c.out, c.in) })
	}
}

func (f *forwarder) pump(c *forwarded, from, to net.Conn) {
	_, _ = io.Copy(to, from)
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = c.out.Close()
	if !c.lost {
		_ = c.in.Close()
	}
}

// streamsIn reads the number of open streams of a hub from metrics.
func streamsIn(t *testing.T, metrics, hub string) (count int) {
	t.Helper()
	_, rest, found := strings.Cut(metrics, "\nmillrace_sse_connections{hub=\""+hub+"\"} ")
	require.True(t, found)
	line, _, _ := strings.Cut(rest, "\n")
	count, err := strconv.Atoi(line)
	require.NoError(t, err)
	return count
}
