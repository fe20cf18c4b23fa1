package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// seen collects what a Follower delivers.
type seen struct {
	mu      sync.Mutex
	values  map[string][]string // per stream
	reasons map[string][]error
	hold    chan struct{} // not nil: Entries waits until it is closed
}

func (s *seen) options(streams ...string) FollowOptions {
	s.values, s.reasons = map[string][]string{}, map[string][]error{}
	return FollowOptions{Streams: streams, Interval: 5 * time.Millisecond, MaxInterval: 20 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
		Entries: func(stream string, entries []FollowedEntry) {
			s.mu.Lock()
			hold := s.hold
			for _, e := range entries {
				s.values[stream] = append(s.values[stream], e.Fields["v"])
			}
			s.mu.Unlock()
			if hold != nil {
				<-hold
			}
		},
		Lost: func(stream string, reason error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reasons[stream] = append(s.reasons[stream], reason)
		},
	}
}

func (s *seen) of(stream string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.values[stream]...)
}

func (s *seen) lost(stream string) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error{}, s.reasons[stream]...)
}

// waitFor waits until the last value of the stream is v.
func (s *seen) waitFor(t *testing.T, stream, v string) {
	t.Helper()
	redistest.Eventually(t, "entry "+v, func() bool {
		all := s.of(stream)
		return len(all) > 0 && all[len(all)-1] == v
	})
}

func (s *seen) waitForLoss(t *testing.T, stream string, n int) error {
	t.Helper()
	redistest.Eventually(t, "a loss", func() bool { return len(s.lost(stream)) >= n })
	require.Len(t, s.lost(stream), n)
	return s.lost(stream)[n-1]
}

func start(t *testing.T, f *Follower) {
	t.Helper()
	require.NoError(t, f.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, f.Stop(context.Background())) })
}

func adder(t *testing.T, c goredis.UniversalClient, stream string) func(v any, options ...func(*goredis.XAddArgs)) {
	return func(v any, options ...func(*goredis.XAddArgs)) {
		t.Helper()
		args := &goredis.XAddArgs{Stream: stream, Values: []any{"v", v}}
		for _, o := range options {
			o(args)
		}
		require.NoError(t, c.XAdd(t.Context(), args).Err())
	}
}

// All entries after the start are delivered once and in order, at any rate.
func TestAFollowerMissesNothing(t *testing.T) {
	t.Parallel()
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		old, fresh := redistest.Stream(t, c), redistest.Stream(t, c)
		adder(t, c, old)("before the start")
		var got seen
		start(t, serverOf(c).Follow(got.options(old, fresh)))

		// A burst of several pages, before the stream was read at all.
		var pipe = c.Pipeline()
		const burst = 5*followPage + 7
		for i := range burst {
			pipe.XAdd(t.Context(), &goredis.XAddArgs{Stream: fresh, Values: []any{"v", i}})
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		got.waitFor(t, fresh, fmt.Sprint(burst-1))

		const n = 1000
		add, tick := adder(t, c, old), time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := range n {
			add(i)
			<-tick.C
		}
		got.waitFor(t, old, fmt.Sprint(n-1))
		for stream, want := range map[string]int{old: n, fresh: burst} {
			values := got.of(stream)
			require.Len(t, values, want)
			for i, v := range values {
				require.Equal(t, strconv.Itoa(i), v)
			}
			require.Empty(t, got.lost(stream))
		}
	})
}

// After a full page the next one is read at once.
func TestAFollowerReadsPagesAtOnce(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		var got seen
		o := got.options(stream)
		var f *Follower
		var pages []time.Time
		entries := o.Entries
		o.Entries = func(stream string, e []FollowedEntry) {
			pages = append(pages, time.Now())
			f.opts.Interval, f.opts.MaxInterval = time.Minute, time.Minute // a machine may stand still for less
			entries(stream, e)
		}
		f = serverOf(c).Follow(o)
		start(t, f)
		_, err := c.TxPipelined(t.Context(), func(tx goredis.Pipeliner) error {
			for i := range 3 * followPage {
				tx.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"v", i}})
			}
			return nil
		})
		require.NoError(t, err)
		got.waitFor(t, stream, fmt.Sprint(3*followPage-1))
		require.NoError(t, f.Stop(t.Context()))
		require.Len(t, pages, 3)
		require.Less(t, pages[2].Sub(pages[0]), time.Minute)
	})
}

// Entries that were trimmed before they were read are lost.
func TestAFollowerBehindATrimmedStream(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		got := seen{hold: make(chan struct{})}
		start(t, serverOf(c).Follow(got.options(stream)))
		add := adder(t, c, stream)
		add("first")
		got.waitFor(t, stream, "first") // and it is held
		for i := range 20 {
			add(i, func(a *goredis.XAddArgs) { a.MaxLen = 3 })
		}
		close(got.hold)
		got.waitFor(t, stream, "19")
		require.Equal(t, []string{"first", "17", "18", "19"}, got.of(stream))
		require.ErrorIs(t, got.waitForLoss(t, stream, 1), errGone)
	})
}

// A stream that goes back, or begins again, has lost entries.
func TestAFollowerOfAStreamThatGoesBack(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		var got seen
		start(t, serverOf(c).Follow(got.options(stream)))
		add := adder(t, c, stream)
		add("first")
		got.waitFor(t, stream, "first")
		require.NoError(t, c.Del(t.Context(), stream).Err())
		require.ErrorIs(t, got.waitForLoss(t, stream, 1), errGone)
		add("again", func(a *goredis.XAddArgs) { a.ID = "9-1" }) // older than the first
		got.waitFor(t, stream, "again")

		// Removed and created again between two reads.
		_, err := c.TxPipelined(t.Context(), func(tx goredis.Pipeliner) error {
			tx.Del(t.Context(), stream)
			tx.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, ID: "9-9", Values: []any{"v", "other"}})
			return nil
		})
		require.NoError(t, err)
		got.waitFor(t, stream, "other")
		require.ErrorIs(t, got.waitForLoss(t, stream, 2), errGone)
		_, err = c.TxPipelined(t.Context(), func(tx goredis.Pipeliner) error {
			tx.Del(t.Context(), stream)
			tx.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, ID: "9-2", Values: []any{"v", "older"}})
			return nil
		})
		require.NoError(t, err)
		require.ErrorIs(t, got.waitForLoss(t, stream, 3), errGone)
		add("end")
		got.waitFor(t, stream, "end")
		require.Equal(t, []string{"first", "again", "other", "end"}, got.of(stream))
		require.Len(t, got.lost(stream), 3)
	})
}

// The stream did not exist, and is trimmed before its first read.
func TestAFollowerOfANewStreamThatIsTrimmed(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, server redistest.Server) {
		c := server.Client(t)
		stream := redistest.Stream(t, c)
		var got seen
		start(t, serverOf(c).Follow(got.options(stream)))
		_, err := c.TxPipelined(t.Context(), func(tx goredis.Pipeliner) error {
			for i := range 3 {
				tx.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, MaxLen: 2, Values: []any{"v", i}})
			}
			return nil
		})
		require.NoError(t, err)
		got.waitFor(t, stream, "2")
		require.ErrorIs(t, got.waitForLoss(t, stream, 1), errGone)
	})
}

// After a connection error entries may have been missed: the server may be another one now.
func TestAFollowerAfterAnOutage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		direct := server.Client(t)
		proxy := redistest.NewProxy(t, server.Addr)
		c := redistest.Server{Addr: proxy.Addr()}.Client(t)
		one, two := redistest.Stream(t, direct), redistest.Stream(t, direct)
		var got seen
		o, lines := got.options(one, two), redistest.Lines{}
		o.Log = slog.New(slog.NewTextHandler(&lines, nil))
		start(t, serverOf(c).Follow(o))
		for _, stream := range []string{one, two} {
			adder(t, direct, stream)("before")
			got.waitFor(t, stream, "before")
		}
		proxy.SetDown(true)
		redistest.Eventually(t, "a warning", func() bool { return strings.Contains(lines.String(), "followed streams not read") })
		for _, stream := range []string{one, two} {
			adder(t, direct, stream)("during")
			require.Empty(t, got.lost(stream), "it can't be read yet")
		}
		proxy.SetDown(false)
		for _, stream := range []string{one, two} {
			err := got.waitForLoss(t, stream, 1)
			require.NotErrorIs(t, err, errGone)
			require.ErrorContains(t, err, "follow.lua")
			got.waitFor(t, stream, "during")
			adder(t, direct, stream)("after")
			got.waitFor(t, stream, "after")
			require.Equal(t, []string{"before", "during", "after"}, got.of(stream))
			require.Len(t, got.lost(stream), 1)
		}
	})
}

// A key that is no stream concerns its own stream alone, from the start on. Once it is one, it is
// followed, and entries may have been missed.
func TestAFollowerOfAKeyThatIsNoStream(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		good, bad := redistest.Stream(t, c), redistest.Stream(t, c)
		require.NoError(t, c.Set(t.Context(), bad, "no stream", 0).Err())
		var got seen
		o, lines := got.options(bad, good), redistest.Lines{}
		o.Log = slog.New(slog.NewTextHandler(&lines, nil))
		server := serverOf(c)
		refused := func() float64 { return testutil.ToFloat64(server.p.refused) }
		f := server.Follow(o)
		require.NoError(t, f.Start(t.Context()))
		stop := sync.OnceFunc(func() { require.NoError(t, f.Stop(context.Background())) })
		t.Cleanup(stop)
		require.EqualValues(t, 1, refused())
		require.Contains(t, lines.String(), "delete the key or correct the rights")
		require.Contains(t, lines.String(), bad)
		require.Contains(t, lines.String(), "WRONGTYPE")
		require.NotContains(t, lines.String(), "followed streams not read", "the server answers")
		adder(t, c, good)("first")
		got.waitFor(t, good, "first")

		require.NoError(t, c.Del(t.Context(), bad).Err())
		adder(t, c, bad)("during")
		require.ErrorContains(t, got.waitForLoss(t, bad, 1), "WRONGTYPE")
		adder(t, c, bad)("after")
		got.waitFor(t, bad, "after")
		require.Zero(t, refused())

		require.NoError(t, c.Set(t.Context(), bad, "no stream", 0).Err())
		redistest.Eventually(t, "it is counted again", func() bool { return refused() == 1 })
		adder(t, c, good)("second")
		got.waitFor(t, good, "second")
		require.Len(t, got.lost(bad), 1)
		require.Empty(t, got.lost(good))
		stop()
		require.Zero(t, refused(), "nothing is followed any more")
	})
}

// A user that may not read one of the keys follows the others.
func TestAFollowerOfAKeyThatItMayNotRead(t *testing.T) {
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "u", "on", "nopass", "~good", "+@all").Err())
		c := s.Client(t, func(o *goredis.Options) { o.Username, o.Password = "u", "any" })
		var got seen
		server := serverOf(c)
		start(t, server.Follow(got.options("bad", "good")))
		require.EqualValues(t, 1, testutil.ToFloat64(server.p.refused))
		adder(t, c, "good")("first")
		got.waitFor(t, "good", "first")
		require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "u", "~bad").Err())
		got.waitForLoss(t, "bad", 1)
		require.Zero(t, testutil.ToFloat64(server.p.refused))
	})
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// Only an answer about the key lets the start pass: a server that is not ready is waited for.
func TestAnswersAboutAKey(t *testing.T) {
	t.Parallel()
	for text, about := range map[string]bool{
		"WRONGTYPE Operation against a key holding the wrong kind of value": true,
		"NOPERM No permissions to access a key":                             true,
		"LOADING Redis is loading the dataset in memory":                    false,
		"CLUSTERDOWN Hash slot not served":                                  false,
		"MASTERDOWN Link with MASTER is down":                               false,
		"TRYAGAIN Multiple keys request during rehashing of slot":           false,
		"BUSY Redis is busy running a script":                               false,
		"ERR max number of clients reached":                                 false,
	} {
		require.Equal(t, about, refusedKey(fmt.Errorf("follow.lua on %q: %w", "k", reply(text))), text)
	}
	require.False(t, refusedKey(errors.New("WRONGTYPE as a text of the network")))
	require.False(t, refusedKey(context.DeadlineExceeded))
}

// A reply that was lost is a connection error, although the client could hide it.
func TestAFollowerSeesALostReply(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		c, lose := lossyClient(t, server)
		stream := redistest.Stream(t, c)
		var got seen
		start(t, serverOf(c).Follow(got.options(stream)))
		lose.Store(true)
		got.waitForLoss(t, stream, 1)
	})
}

// Idle streams cost one pipeline per longest pause, however many they are.
func TestTheCostOfIdleStreams(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		const streams, pause = 50, 50 * time.Millisecond
		var names []string
		for range streams {
			names = append(names, redistest.Stream(t, c))
		}
		var got seen
		o := got.options(names...)
		o.MaxInterval = pause
		f := serverOf(c).Follow(o)
		start(t, f)
		commands := redistest.Watch(c)
		begin := time.Now()
		redistest.Eventually(t, "reads", func() bool { return commands.Count("evalsha") >= 20*streams })
		require.GreaterOrEqual(t, time.Since(begin), 16*pause, "the first pauses are shorter")
		require.Empty(t, commands.Blocking())
	})
}

// A node of a Cluster that does not answer delays only its own streams.
func TestASilentNodeDelaysOnlyItsStreams(t *testing.T) {
	t.Parallel()
	answers, silent := redistest.Mini(t), redistest.Mini(t)
	proxy := redistest.NewProxy(t, silent.Addr)
	c := halves(t, answers.Addr, proxy.Addr(), 3*time.Second)
	var names, live []string
	for i := range 20 {
		names = append(names, fmt.Sprint("feed:", i))
		if onNode(t, c, names[i], answers.Addr) {
			live = append(live, names[i])
		}
	}
	require.InDelta(t, 10, len(live), 6)
	var got seen
	start(t, serverOf(c).Follow(got.options(names...)))
	for _, name := range names {
		adder(t, c, name)("begin")
		got.waitFor(t, name, "begin")
	}
	proxy.Mute()
	proxy.Cut()
	begin := time.Now()
	for i := range 50 {
		for _, name := range live {
			adder(t, c, name)(i)
		}
		for _, name := range live {
			got.waitFor(t, name, fmt.Sprint(i))
		}
	}
	require.Less(t, time.Since(begin), time.Minute, "a read of the silent node takes 3 s")
	for _, name := range live {
		require.Empty(t, got.lost(name))
	}
	proxy.SetDown(true) // so that the stop is quick
}

// The start waits for the server, and the stop does not wait longer than it may.
func TestAFollowerWithoutAServer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		direct := server.Client(t)
		proxy := redistest.NewProxy(t, server.Addr)
		c := redistest.Server{Addr: proxy.Addr()}.Client(t, func(o *goredis.Options) { o.ReadTimeout = time.Minute })
		stream := redistest.Stream(t, direct)
		var got seen
		proxy.SetDown(true)
		f := serverOf(c).Follow(got.options(stream))
		require.NoError(t, f.Stop(t.Context()))
		f = serverOf(c).Follow(got.options(stream))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, f.Start(ctx), pipeline.ErrUnavailable)

		started := make(chan error, 1)
		go func() { started <- f.Start(t.Context()) }()
		proxy.SetDown(false)
		require.NoError(t, <-started)
		adder(t, direct, stream)("first")
		got.waitFor(t, stream, "first")
		require.Empty(t, got.lost(stream), "there was no position yet")

		proxy.Mute()
		proxy.Cut()
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_ = f.Stop(ctx) // nil if no read was in flight
		require.Less(t, time.Since(begin), 30*time.Second, "a read takes a minute")
		proxy.SetDown(true)
		require.NoError(t, f.Stop(t.Context()))
	})
}
