package reclaim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// counter counts the commands of a client, or only those of one name.
type counter struct {
	only string
	n    atomic.Int64
}

func (c *counter) count(cmds ...goredis.Cmder) {
	for _, cmd := range cmds {
		if c.only == "" || cmd.Name() == c.only {
			c.n.Add(1)
		}
	}
}

func (c *counter) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (c *counter) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { c.count(cmd); return next(ctx, cmd) }
}

func (c *counter) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}

// A reader without room has nothing looked at again: not the other streams, and its own only when
// it has room.
func TestAFullReaderCostsTheOthersNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle = time.Hour
		full := &fakeReader{}
		target := &fakeTarget{client: s.client, streams: []Stream{s.stream(t, "full", "me-1-0", full)}}
		for i := range 20 {
			target.streams = append(target.streams, s.stream(t, fmt.Sprint(i), "me-1-0", &fakeReader{free: 10}))
		}
		s.release(t, target.streams[0], "other-2-0", 2*time.Hour, s.hold(t, target.streams[0], "other-2-0", 5))
		count := &counter{}
		s.client.AddHook(count)
		d := newDomain(newRig(c, "me-1", present("other-2")).Reclaimer, target)
		require.True(t, d.round(t.Context(), true), "some are left")
		before := count.n.Load()
		for range 10 {
			require.True(t, d.continueRound(t.Context()))
		}
		require.Equal(t, before, count.n.Load(), "there is still no room")

		full.mu.Lock()
		full.free = 3
		full.mu.Unlock()
		require.True(t, d.continueRound(t.Context()))
		require.Len(t, full.got(), 3)
		require.Less(t, count.n.Load()-before, int64(20), "the other streams are not looked at")
		full.mu.Lock()
		full.free = 10
		full.mu.Unlock()
		require.False(t, d.continueRound(t.Context()))
		require.Len(t, full.got(), 5)
	})
}

// Entries that a full reader left are claimed when it has room. That is between two rounds for idle
// entries, and while dead readers are served.
func TestWhatIsLeftIsTakenUpBetweenRounds(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle, c.Interval = time.Hour, time.Hour
		r := &fakeReader{}
		st := s.stream(t, "1", "me-1-0", r)
		s.release(t, st, "other-2-0", 2*time.Hour, s.hold(t, st, "other-2-0", 5))
		s.hold(t, st, "gone-3-0", 1)
		newRig(c, "me-1", present("other-2"), &fakeTarget{client: s.client, streams: []Stream{st}}).run(t)
		for i := range 6 {
			r.mu.Lock()
			r.free = 1
			r.mu.Unlock()
			redistest.Eventually(t, "one more is taken", func() bool { return len(r.got()) == i+1 })
		}
	})
}

// Only an answer about idle entries says that nothing is left.
func TestWhatIsLeftIsNotForgotten(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle = time.Hour
		r := &fakeReader{}
		st := s.stream(t, "1", "me-1-0", r)
		s.release(t, st, "other-2-0", 2*time.Hour, s.hold(t, st, "other-2-0", 2))
		target := &fakeTarget{client: s.client, streams: []Stream{st}}
		d := newDomain(newRig(c, "me-1", present("other-2")).Reclaimer, target)
		require.True(t, d.round(t.Context(), true), "the reader is full")
		require.True(t, d.round(t.Context(), false), "nobody has asked since")

		r.mu.Lock()
		r.free = 1
		r.mu.Unlock()
		s.hold(t, st, "gone-3-0", 1)
		redistest.Eventually(t, "the dead reader is removed", func() bool {
			return d.round(t.Context(), false) && !slices.Contains(s.consumers(t, st), "gone-3-0")
		})
		require.Len(t, r.got(), 1)
		require.True(t, d.unfinished[st.Name], "the idle ones are still there")

		r.mu.Lock()
		r.free = 1
		r.mu.Unlock()
		broken := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
		t.Cleanup(func() { require.NoError(t, broken.Close()) })
		target.client = broken
		require.True(t, d.continueRound(t.Context()), "the look has failed")
		require.True(t, d.round(t.Context(), true), "this one too")
		target.client = s.client
		require.True(t, d.round(t.Context(), true), "one is left")
		target.streams = nil
		require.False(t, d.round(t.Context(), true), "it is not read here any more")
	})
}

// A reader that stops is no failure; entries that it could not release are one.
func TestOnlyTheExpectedIsQuiet(t *testing.T) {
	t.Parallel()
	handed := func(err error) error {
		return fmt.Errorf("hand 1 entries to the reader: %w", errors.Join(poll.ErrStopped, err))
	}
	for _, test := range []struct {
		name     string
		err      error
		expected bool
	}{
		{"stopped", handed(nil), true},
		{"gone", fmt.Errorf("probe: %w", errors.New("NOGROUP No such key")), true},
		{"stopped and gone", handed(errors.New("NOGROUP No such key")), true},
		{"not put back", handed(errInjected), false},
		{"stopped, lease not released", errors.Join(handed(nil), errInjected), false},
		{"something else", errInjected, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(quick(), "me-1", present())
			d := newDomain(r.Reclaimer, &fakeTarget{})
			d.failed(Stream{Shard: "0", Name: "s"}, test.err)
			_, failing := d.failing["s"]
			require.Equal(t, test.expected, !failing)
			require.Equal(t, test.expected, r.log.Count("stream not reclaimed") == 0)
		})
	}
}

// cut loses the reply to the first command that contains a text, with its connection.
type cut struct {
	text string
	done atomic.Bool
}

func (c *cut) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		return &cutConn{Conn: conn, cut: c}, err
	}
}
func (c *cut) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }
func (c *cut) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

type cutConn struct {
	net.Conn
	cut  *cut
	lost atomic.Bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(c.cut.text)) && c.cut.done.CompareAndSwap(false, true) {
		c.lost.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.lost.Load() && err == nil {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

// The reply of a claim is lost: its entries are found at once, and not after another min_idle.
func TestALostClaimIsReadAgain(t *testing.T) {
	for _, how := range []struct {
		name  string
		idle  time.Duration
		alive []string
	}{
		{"idle", 2 * time.Hour, []string{"other-2"}},
		{"dead", time.Minute, nil},
	} {
		t.Run(how.name, func(t *testing.T) {
			eachServer(t, func(t *testing.T, s server) {
				c := quick()
				c.MinIdle = time.Hour
				lost := &cut{text: s.claimHash(t)}
				client := goredis.NewClient(&goredis.Options{Addr: s.Addr, MaxRetries: 3, Protocol: 2})
				client.AddHook(lost)
				t.Cleanup(func() { require.NoError(t, client.Close()) })
				st := s.stream(t, "1", "me-1-0", nil)
				ids := s.hold(t, st, "other-2-0", 3)
				s.release(t, st, "other-2-0", how.idle, ids)
				var handled atomic.Int64
				realReader(t, s, &st, 5, time.Hour, func(*message.Message) { handled.Add(1) })
				newRig(c, "me-1", present(how.alive...), &fakeTarget{client: client, streams: []Stream{st}}).run(t)
				redistest.Eventually(t, "all are handled", func() bool { return handled.Load() == 3 })
				require.True(t, lost.done.Load(), "a reply was lost")
			})
		})
	}
}
