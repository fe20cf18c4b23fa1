package web

import (
	"io"
	"net"
	"sync"
	"syscall"
)

// firstRead is what net/http reads at most for the headers of a request.
const firstRead = maxHeader + 4<<10

// firstListener takes the headers of the first request of a connection in one read. Without it,
// net/http reads 14 bytes first, to find HTTP/2 without encryption. If the process was frozen until
// then, the time limit of the headers may have passed before the next read. net/http then takes the
// 14 bytes for the complete first line, and answers a good request with 400.
type firstListener struct {
	net.Listener
	buffers *sync.Pool
}

func newFirstListener(l net.Listener) firstListener {
	return firstListener{l, &sync.Pool{New: func() any { return new([firstRead]byte) }}}
}

// Accept implements net.Listener.
func (l firstListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if s, ok := c.(socket); ok {
		return &firstConn{socket: s, buffers: l.buffers}, err
	}
	return c, err
}

// socket is what net/http uses of a net.TCPConn. It has no WriteTo, because that would skip the
// bytes that firstConn has read.
type socket interface {
	net.Conn
	io.ReaderFrom // sendfile
	syscall.Conn
	CloseWrite() error
}

// firstConn permits one reader at a time; net/http has no more.
type firstConn struct {
	socket
	buffers *sync.Pool
	started bool
	buffer  *[firstRead]byte // nil without rest
	rest    []byte           // of the first read
}

// Read implements net.Conn. The socket returns bytes or an error, never both.
func (c *firstConn) Read(p []byte) (n int, err error) {
	if !c.started {
		c.started, c.buffer = true, c.buffers.Get().(*[firstRead]byte)
		n, err = c.socket.Read(c.buffer[:])
		c.rest = c.buffer[:n]
	}
	if c.buffer == nil {
		return c.socket.Read(p)
	}
	n = copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.buffers.Put(c.buffer)
		c.buffer, c.rest = nil, nil
	}
	return n, err
}
