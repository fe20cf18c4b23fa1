package web_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/web"
)

// frozen is a listener whose connections have received sent when their first read begins. After
// that read, their deadline is over.
type frozen struct {
	net.Listener
	sent string
}

func (l frozen) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &frozenConn{TCPConn: c.(*net.TCPConn), sent: strings.NewReader(l.sent)}, nil
}

type frozenConn struct {
	*net.TCPConn
	sent *strings.Reader
	over atomic.Bool // the read deadline
}

// Read returns no bytes after the deadline, also if there are any, like a socket.
func (c *frozenConn) Read(p []byte) (int, error) {
	if c.over.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	if c.sent.Len() == 0 {
		return c.TCPConn.Read(p)
	}
	c.over.Store(int64(c.sent.Len()) == c.sent.Size())
	return c.sent.Read(p)
}

func (c *frozenConn) SetReadDeadline(t time.Time) error {
	c.over.Store(false)
	return c.TCPConn.SetReadDeadline(t)
}

// A process was frozen after it had accepted a connection. The complete request has arrived since.
func TestFirstRequestAfterAFreeze(t *testing.T) {
	t.Parallel()
	const request = "POST /jobs/7 HTTP/1.1\r\nHost: a\r\nCookie: %s\r\nContent-Length: %d\r\n\r\n%s"
	body := strings.Repeat("0123456789", 10<<10) // more than the first read takes
	get := func(wrap func(net.Listener) net.Listener, cookie int) (int, string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := &http.Server{
			Protocols: &http.Protocols{}, ReadHeaderTimeout: time.Hour, MaxHeaderBytes: 16 << 10,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got, err := io.ReadAll(r.Body)
				fmt.Fprint(w, len(r.Header.Get("Cookie")), err, string(got) == body)
			}),
		}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		sent := fmt.Sprintf(request, strings.Repeat("x", cookie), len(body), body)
		served := make(chan error, 1)
		go func() { served <- s.Serve(wrap(frozen{l, sent})) }()
		defer func() {
			require.NoError(t, s.Close())
			require.ErrorIs(t, <-served, http.ErrServerClosed)
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		return a.StatusCode, string(text)
	}
	status, _ := get(func(l net.Listener) net.Listener { return l }, 10)
	require.Equal(t, http.StatusBadRequest, status, "net/http alone; otherwise remove first.go")
	for _, cookie := range []int{10, 5 << 10, 16 << 10} {
		status, text := get(web.First, cookie)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, fmt.Sprint(cookie, nil, true), text, "the request is unchanged")
	}
}

// A first read without any bytes leaves nothing to the next one.
func TestFirstReadThatFails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	c, err := web.First(l).Accept()
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetReadDeadline(time.Unix(1, 0)))
	for range 2 {
		n, err := c.Read(make([]byte, 14))
		require.Zero(t, n)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(client, "later")
	require.NoError(t, err)
	got := make([]byte, 5)
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, "later", string(got))
	client.Close()
	_, err = c.Read(got)
	require.ErrorIs(t, err, io.EOF)
}

func TestServerTakesTheFirstRequestInOneRead(t *testing.T) {
	t.Parallel()
	conns := make(chan net.Conn, 1)
	mount := func(s *site) {
		s.web.Handle("GET /conn", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				c.Close()
			}
			conns <- c
		}))
	}
	plain := start(t, nil, mount)
	dial(t, plain, "GET /conn HTTP/1.1\r\nHost: a\r\n\r\n")
	c := <-conns
	require.IsType(t, web.FirstConn, c)
	require.Implements(t, (*io.ReaderFrom)(nil), c, "net/http sends files with it")
	require.Implements(t, (*interface{ CloseWrite() error })(nil), c, "net/http refuses with it")
	require.NotImplements(t, (*io.WriterTo)(nil), c, "it would skip what was read")

	// TLS finds HTTP/2 in the handshake.
	file, _ := pipelinetest.Certificate(t)
	secure := start(t, func(c *web.Config) { c.TLS.CertFile, c.TLS.KeyFile = file, file }, mount)
	trust := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // of this test
	client, err := tls.Dial("tcp", secure.web.Addr(), trust)
	require.NoError(t, err)
	defer client.Close()
	_, err = io.WriteString(client, "GET /conn HTTP/1.1\r\nHost: a\r\n\r\n")
	require.NoError(t, err)
	c = <-conns
	require.IsType(t, &tls.Conn{}, c)
	require.Implements(t, (*io.WriterTo)(nil), c.(*tls.Conn).NetConn(), "the TCP connection, without the first read")
}
