package redispoll_test

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
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redispoll"
)

// emptyServer speaks just enough of the protocol to be an idle stream, over in-memory pipes, so that hours
// pass in no time inside a synctest bubble.
type emptyServer struct {
	wg    sync.WaitGroup
	info  string       // reply to INFO
	reads atomic.Int64 // XREADGROUP with id >
	own   atomic.Int64 // XPENDING of what the consumer has
	other atomic.Int64 // everything else after the handshake
}

func (s *emptyServer) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.wg.Go(func() { s.serve(theirs) })
	return ours, nil
}

func (s *emptyServer) client() redis.UniversalClient {
	return redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Dialer: s.dial, Protocol: 2, DisableIdentity: true, // a name would be looked up
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

func (s *emptyServer) serve(conn net.Conn) {
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
			reply = fmt.Sprintf("$%d\r\n%s\r\n", len(s.info), s.info)
		case name == "xreadgroup" && args[len(args)-1] == ">":
			s.reads.Add(1)
			reply = "*-1\r\n"
		case name == "xpending":
			s.own.Add(1)
			reply = "*0\r\n"
		case strings.HasPrefix(name, "eval"):
			s.other.Add(1)
			reply = ":1\r\n"
		default:
			s.other.Add(1)
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

// Promise 7: an idle stream costs one XREADGROUP a poll interval and instance, however many slots, and nothing else.
func TestIdleStreamCostsOneReadAPollInterval(t *testing.T) {
	for _, slots := range []int{1, 32} {
		synctest.Test(t, func(t *testing.T) {
			s := &emptyServer{}
			c := s.client()
			const interval = 5 * time.Second
			rd := redispoll.NewReader(c, redispoll.ReaderConfig{
				Stream: "s", Group: group, Consumer: "c", Slots: slots, PollInterval: interval, FirstPoll: 5 * time.Millisecond,
			}, make(chan *message.Message), redispoll.Hooks{}, nil, nil)
			rd.Start()
			time.Sleep(2 * interval) // the back-off reaches the poll interval
			synctest.Wait()
			require.EqualValues(t, 1, s.own.Load())
			backOff := s.reads.Load()
			require.LessOrEqual(t, backOff, int64(15), "5ms doubled to 5s")

			for range 100 { // in every window, not only on average
				before := s.reads.Load()
				time.Sleep(36 * time.Second)
				synctest.Wait()
				require.LessOrEqual(t, s.reads.Load()-before, int64(8), "36s hold at most eight starts of 5s")
			}
			reads := s.reads.Load() - backOff
			require.LessOrEqual(t, reads, int64(720), "more than one read a poll interval")
			require.Greater(t, reads, int64(640), "jitter only lengthens, by a tenth at most")
			require.Zero(t, s.other.Load(), "commands other than reads")

			require.NoError(t, rd.Drain(t.Context()))
			require.NoError(t, c.Close())
			s.wg.Wait()
		})
	}
}

// Wake is for those who know that there is something.
func TestWakePollsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &emptyServer{}
		c := s.client()
		rd := redispoll.NewReader(c, redispoll.ReaderConfig{Stream: "s", Group: group, Consumer: "c", PollInterval: time.Hour, FirstPoll: time.Hour},
			make(chan *message.Message), redispoll.Hooks{}, nil, nil)
		rd.Start()
		synctest.Wait()
		before := s.reads.Load()
		rd.Wake()
		synctest.Wait()
		require.Equal(t, before+1, s.reads.Load())
		require.NoError(t, rd.Drain(t.Context()))
		require.NoError(t, c.Close())
		s.wg.Wait()
	})
}
