package redistest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// EmptyServer implements the part of the protocol that an idle stream needs, over in-memory pipes.
// Hours pass in no time inside a synctest bubble.
type EmptyServer struct {
	wg    sync.WaitGroup
	Info  string       // reply to INFO
	Reads atomic.Int64 // XREADGROUP with id >
	Own   atomic.Int64 // XPENDING of what the consumer has
	Other atomic.Int64 // everything else after the handshake
}

func (s *EmptyServer) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.wg.Go(func() { s.serve(theirs) })
	return ours, nil
}

// Client returns a client, which the caller closes before Wait.
func (s *EmptyServer) Client() goredis.UniversalClient {
	return goredis.NewClient(&goredis.Options{
		Addr: "127.0.0.1:1", Dialer: s.dial, Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// Wait waits until all connections are closed.
func (s *EmptyServer) Wait() { s.wg.Wait() }

func (s *EmptyServer) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		reply := "+OK\r\n"
		switch name := strings.ToLower(args[0]); {
		case name == "hello":
			reply = "-ERR unknown command\r\n"
		case name == "client" || name == "ping":
		case name == "info":
			reply = fmt.Sprintf("$%d\r\n%s\r\n", len(s.Info), s.Info)
		case name == "xreadgroup" && args[len(args)-1] == ">":
			s.Reads.Add(1)
			reply = "*-1\r\n"
		case name == "xpending":
			s.Own.Add(1)
			reply = "*0\r\n"
		case strings.HasPrefix(name, "eval"):
			s.Other.Add(1)
			reply = ":1\r\n"
		default:
			s.Other.Add(1)
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

// readCommand reads an array of bulk strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	number := func(prefix byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil || line[0] != prefix {
			return 0, fmt.Errorf("want %c: %q %w", prefix, line, err)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		args[i] = string(b[:size])
	}
	return args, nil
}
