package streams

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func enqueue(t testing.TB, m *Manager, id string, from, n int) {
	t.Helper()
	for i := range n {
		out, err := enqueueOne(context.Background(), m, id, newEntry(fmt.Sprint(from+i)))
		require.NoError(t, err)
		require.Equal(t, Added, out)
	}
}

func pending(s server, stream, group string) int64 {
	p, err := s.client.XPending(context.Background(), stream, group).Result()
	if err != nil {
		return -1
	}
	return p.Count
}

func consumers(t testing.TB, s server, stream, group string) (names []string) {
	list, err := s.client.XInfoConsumers(context.Background(), stream, group).Result()
	require.NoError(t, err)
	for _, c := range list {
		names = append(names, c.Name)
	}
	return names
}

// A stream is started once, and its messages are handled and acknowledged.
func TestAStreamIsStartedOnceAndHandled(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1")
		in := newInstance(t, s, "a", active, still())
		in.open(t, pipeline.Flow{}, nil)
		require.NoError(t, in.start(t.Context(), "1", 1000))
		require.True(t, in.isRunning("1"))
		stream, group := in.opts.Kind.Stream("1"), in.opts.Kind.Group("1")
		groups, err := s.client.XInfoGroups(t.Context(), stream).Result()
		require.NoError(t, err)
		require.Len(t, groups, 1)
		require.Equal(t, group, groups[0].Name)

		require.NoError(t, in.start(t.Context(), "1", 1000), "a second start is no error")
		require.Equal(t, []string{"1"}, in.running())
		require.Equal(t, 1, in.log.Count("stream started"))

		enqueue(t, in.Manager, "1", 0, 20)
		redistest.Eventually(t, "20 handled", func() bool { return len(in.done()) == 20 })
		redistest.Eventually(t, "acked", func() bool { return pending(s, stream, group) == 0 })
		require.Equal(t, []string{"a-0"}, consumers(t, s, stream, group))
		require.NoError(t, in.start(t.Context(), "1", 1_000_000), "another size is taken over")
		require.Equal(t, 32, in.sub.(*subscription).get("1").reader.Stats().Concurrency)
	})
}

// A stop ends the reading of this instance. The stream and unread entries stay.
func TestAStopEndsTheReadingAndKeepsTheStream(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := still()
		c.ReconcileInterval = c.IdleTimeout // no round: the second would start the stream again
		in := newInstance(t, s, "a", newActiveSet(), c)
		in.open(t, pipeline.Flow{}, nil)
		require.NoError(t, in.start(t.Context(), "1", 1000))
		enqueue(t, in.Manager, "1", 0, 5)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 5 })
		require.NoError(t, in.stop(t.Context(), "1"))
		require.NoError(t, in.stop(t.Context(), "1"), "a second stop does nothing")
		require.False(t, in.isRunning("1"))
		stream, group := in.opts.Kind.Stream("1"), in.opts.Kind.Group("1")
		require.Empty(t, consumers(t, s, stream, group), "its own reader is removed")
		enqueue(t, in.Manager, "1", 5, 1)
		st, err := in.Inspect(t.Context(), "1")
		require.NoError(t, err)
		require.True(t, st.Exists)
		require.False(t, st.Drained)
		require.Len(t, in.done(), 5, "nothing is handled after a stop")
	})
}

func merge(ins ...*instance) map[string]int {
	out := map[string]int{}
	for _, in := range ins {
		in.mu.Lock()
		for k, n := range in.runs {
			out[k] += n
		}
		in.mu.Unlock()
	}
	return out
}

// The end of the application stops everything. Messages in flight are finished and acknowledged.
func TestAShutdownFinishesWhatIsInFlight(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1", "2")
		in := newInstance(t, s, "a", active, still())
		started, finish := make(chan struct{}, 10), make(chan struct{})
		in.open(t, pipeline.Flow{}, func(*message.Message) error {
			started <- struct{}{}
			<-finish
			return nil
		})
		enqueue(t, in.Manager, "1", 0, 1)
		enqueue(t, in.Manager, "2", 1, 1)
		<-started
		<-started
		drained := make(chan error)
		go func() { drained <- in.sub.Drain(context.Background()) }()
		close(finish)
		require.NoError(t, <-drained)
		in.wait.Wait()
		require.Empty(t, in.running())
		require.NoError(t, in.sub.Drain(t.Context()), "a second drain is no error")
		require.ErrorIs(t, in.sub.(*subscription).startLocked(t.Context(), Activation{ID: "1"}), context.Canceled)
		for id := int64(1); id <= 2; id++ {
			stream, group := in.opts.Kind.Stream(fmt.Sprint(id)), in.opts.Kind.Group(fmt.Sprint(id))
			require.Zero(t, pending(s, stream, group), "acknowledged before the end")
			require.Empty(t, consumers(t, s, stream, group))
			require.Equal(t, int64(1), s.client.Exists(t.Context(), stream).Val(), "the stream stays")
		}
		require.True(t, active.has("1"), "an end of an instance changes nothing for the others")
	})
}

// Drain is bounded by stop_timeout, all streams and slots together; what was not finished stays
// pending. An entry that a handler has for longer than its route's longest hold, or than the
// setting, is kept alive no more.
func TestTheLongestHoldOfTheRoute(t *testing.T) {
	for name, hold := range map[string]struct{ route, setting time.Duration }{
		"the route's": {100 * time.Millisecond, time.Hour}, "the setting": {time.Hour, 100 * time.Millisecond}, "no setting": {100 * time.Millisecond, 0},
		"the route has none": {-1, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(t *testing.T, s server) {
				c := still()
				c.MinIdle, c.LongestHold = 600*time.Millisecond, hold.setting
				in := newInstance(t, s, "a", newActiveSet("1"), c)
				release := make(chan struct{})
				in.open(t, pipeline.Flow{LongestHold: hold.route}, func(*message.Message) error { <-release; return nil })
				t.Cleanup(func() { close(release) })
				enqueue(t, in.Manager, "1", 0, 1)
				redistest.Eventually(t, "no sign of life", func() bool {
					idle, err := s.client.XPendingExt(t.Context(), &redis.XPendingExtArgs{
						Stream: in.opts.Kind.Stream("1"), Group: in.opts.Kind.Group("1"), Idle: c.MinIdle, Start: "-", End: "+", Count: 1,
					}).Result()
					return err == nil && len(idle) == 1
				})
			})
		})
	}
}

func TestDrainIsBounded(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := still()
		c.StopTimeout = 2 * time.Second
		in := newInstance(t, s, "a", newActiveSet("1", "2", "3"), c)
		stuck := make(chan struct{})
		free := sync.OnceFunc(func() { close(stuck) })
		started := make(chan struct{}, 3)
		in.open(t, pipeline.Flow{}, func(*message.Message) error { started <- struct{}{}; <-stuck; return nil })
		t.Cleanup(free) // also when something below fails
		for id := range int64(3) {
			enqueue(t, in.Manager, fmt.Sprint(id+1), int(id), 1)
		}
		for range 3 {
			<-started
		}
		start := time.Now()
		require.ErrorContains(t, in.sub.Close(), "drain")
		require.Less(t, time.Since(start), 30*time.Second)
		require.Equal(t, int64(1), pending(s, in.opts.Kind.Stream("1"), in.opts.Kind.Group("1")), "nothing is lost")
		require.Equal(t, []string{"a-0"}, consumers(t, s, in.opts.Kind.Stream("1"), in.opts.Kind.Group("1")), "a reader that holds something stays")
		free()
		in.wait.Wait()
	})
}

// A call that lasts longer than a stream may take to stop is not cut off, and so not made again elsewhere, while the
// process has time.
func TestADrainWaitsAsLongAsTheProcess(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := still()
		c.StopTimeout = time.Millisecond
		in := newInstance(t, s, "a", newActiveSet("1", "2"), c)
		stuck, started := make(chan struct{}), make(chan struct{}, 2)
		free := sync.OnceFunc(func() { close(stuck) })
		in.open(t, pipeline.Flow{}, func(*message.Message) error { started <- struct{}{}; <-stuck; return nil })
		t.Cleanup(free) // also when something below fails
		for id := range 2 {
			enqueue(t, in.Manager, fmt.Sprint(id+1), id, 1)
			<-started
		}
		drained := make(chan error, 1)
		go func() { drained <- in.sub.Drain(t.Context()) }()
		select {
		case err := <-drained:
			require.FailNow(t, "it did not wait", err)
		case <-time.After(100 * c.StopTimeout):
		}
		free()
		require.NoError(t, <-drained)
		for id := range 2 {
			require.Zero(t, pending(s, in.opts.Kind.Stream(fmt.Sprint(id+1)), in.opts.Kind.Group(fmt.Sprint(id+1))))
		}
		in.wait.Wait()
	})
}

// A stream that was idle for idle_timeout is stopped and cleaned up, also if no message ever came.
// The next message starts it again.
func TestAnIdleStreamIsStoppedAndStartedAgain(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1", "2")
		in := newInstance(t, s, "a", active, quick())
		in.open(t, pipeline.Flow{}, nil)
		begin := time.Now()
		enqueue(t, in.Manager, "1", 0, 10)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 10 })
		redistest.Eventually(t, "both stopped", func() bool { return len(in.running()) == 0 })
		require.GreaterOrEqual(t, time.Since(begin), quick().IdleTimeout)
		for id := int64(1); id <= 2; id++ {
			stream := in.opts.Kind.Stream(fmt.Sprint(id))
			require.Zero(t, s.client.Exists(t.Context(), stream, MetaKey(stream)).Val())
			require.False(t, active.has(fmt.Sprint(id)))
		}
		before, _ := active.counts()
		enqueue(t, in.Manager, "1", 10, 1)
		redistest.Eventually(t, "revived", func() bool { return len(in.done()) == 11 })
		after, _ := active.counts() // it may be idle again already
		require.Greater(t, after, before)
		redistest.Eventually(t, "stopped again", func() bool { return len(in.running()) == 0 })
	})
}

// All slots see the end in the same moment: one shutdown.
func TestIdleStopHappensOncePerStream(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet()
		active.set(Activation{ID: "1", TotalCount: 1_000_000})
		in := newInstance(t, s, "a", active, quick())
		enqueue(t, in.Manager, "1", 0, 32) // before it could be idle
		release := make(chan struct{})
		in.open(t, pipeline.Flow{}, func(*message.Message) error { <-release; return nil })
		free := sync.OnceFunc(func() { close(release) })
		t.Cleanup(free)
		redistest.Eventually(t, "32 in flight", func() bool { return in.inFlight.Load() == 32 })
		// In flight for longer than idle_timeout is not idle.
		require.Never(t, func() bool { return !active.has("1") }, 2*quick().IdleTimeout, 10*time.Millisecond)
		free()
		redistest.Eventually(t, "stopped", func() bool { return in.log.Count("stream stopped") > 0 })
		require.Never(t, func() bool { return in.log.Count("stream stopped") > 1 }, 5*quick().ReconcileInterval, 5*time.Millisecond)
		_, deactivated := active.counts()
		require.Equal(t, 1, deactivated)
		require.False(t, in.isRunning("1"))
	})
}

// A stream is not idle while a message of it is in flight here, even if a client has acknowledged
// it.
func TestAMessageInFlightIsNotIdleEvenWhenAcked(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1")
		in := newInstance(t, s, "a", active, quick())
		enqueue(t, in.Manager, "1", 0, 1) // before it could be idle
		release := make(chan struct{})
		in.open(t, pipeline.Flow{}, func(*message.Message) error { <-release; return nil })
		free := sync.OnceFunc(func() { close(release) })
		t.Cleanup(free)
		redistest.Eventually(t, "in flight", func() bool { return in.inFlight.Load() == 1 })
		ids, err := s.client.XPendingExt(t.Context(), &redis.XPendingExtArgs{Stream: in.opts.Kind.Stream("1"), Group: in.opts.Kind.Group("1"), Start: "-", End: "+", Count: 1}).Result()
		require.NoError(t, err)
		require.NoError(t, s.client.XAck(t.Context(), in.opts.Kind.Stream("1"), in.opts.Kind.Group("1"), ids[0].ID).Err())
		require.Never(t, func() bool { return !active.has("1") }, 3*quick().IdleTimeout, 10*time.Millisecond)
		free()
		redistest.Eventually(t, "stopped", func() bool { return !in.isRunning("1") })
	})
}

// A start and a stop of one id never overlap. At most one reader per stream reads in this instance,
// and none after its stop.
func TestStartAndStopNeverOverlap(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := still()
		c.ReconcileInterval = c.IdleTimeout // no round: the second would start the stream again
		in := newInstance(t, s, "a", newActiveSet(), c)
		var mu sync.Mutex
		reading := map[string]int{}
		most := 0
		h := &hook{}
		in.client.AddHook(h)
		stream := func(cmd redis.Cmder) string {
			if !strings.EqualFold(cmd.Name(), "xreadgroup") {
				return ""
			}
			return fmt.Sprint(cmd.Args()[len(cmd.Args())-2])
		}
		h.set(func(cmd redis.Cmder) error {
			if k := stream(cmd); k != "" {
				mu.Lock()
				defer mu.Unlock()
				reading[k]++
				most = max(most, reading[k])
			}
			return nil
		}, func(cmd redis.Cmder) {
			if k := stream(cmd); k != "" {
				mu.Lock()
				defer mu.Unlock()
				reading[k]--
			}
		})
		in.open(t, pipeline.Flow{}, nil)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 30 {
					id := int64((g+i)%2 + 1)
					if (g+i)%3 == 0 {
						_ = in.stop(context.Background(), fmt.Sprint(id))
					} else {
						_ = in.start(context.Background(), fmt.Sprint(id), 10)
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, in.start(t.Context(), "1", 10))
		require.NoError(t, in.stop(t.Context(), "1"))
		require.NoError(t, in.stop(t.Context(), "2"))
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, 1, most, "one reader per stream at a time")
		for k, n := range reading {
			require.Zero(t, n, "%s is read after its stop", k)
		}
		require.Empty(t, in.running())
	})
}
