package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/plugins/token"
)

// streamServer is a process with streams: its public address and that of its metrics.
type streamServer struct{ addr, operations string }

// unusedStreamServer returns two addresses without a listener.
func unusedStreamServer(ctx context.Context) (s streamServer, err error) {
	if s.addr, err = unusedAddress(ctx); err != nil {
		return s, err
	}
	s.operations, err = unusedAddress(ctx)
	return s, err
}

// tokenKeys creates a key if there is none, and returns the setting that names it.
func (e *environment) tokenKeys() ([]map[string]string, error) {
	key := filepath.Join(e.dir, "token.pem")
	return []map[string]string{{"kid": "bench", "file": key}}, token.CreateKey(key)
}

// keepStuck opens streams one after another, and reads none.
func keepStuck(ctx context.Context, open func() (net.Conn, error)) error {
	const lasts = 6 * time.Second // the server ends a write that hangs after 5 s
	for ctx.Err() == nil {
		conn, err := open()
		if err != nil {
			return err
		}
		_ = sleep(ctx, lasts) // or until the phase is over
		_ = conn.Close()
	}
	return nil
}

// stuck opens a stream with small buffers.
func (s streamServer) stuck(request string) (net.Conn, error) {
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		failed := c.Control(func(fd uintptr) {
			err = errors.Join(
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10),
				// The sender's buffer depends on it.
				syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536),
			)
		})
		return errors.Join(failed, err)
	}}
	conn, err := small.Dial("tcp", s.addr)
	if err != nil {
		return nil, err
	}
	_, err = conn.Write([]byte(request))
	return conn, err
}

// metric returns the sum of the series.
func (s streamServer) metric(ctx context.Context, series ...string) (sum float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.operations+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	for _, one := range series {
		_, value, _ := strings.Cut(string(text), "\n"+one+" ")
		value, _, _ = strings.Cut(value, "\n")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", one, err)
		}
		sum += n
	}
	return sum, nil
}
