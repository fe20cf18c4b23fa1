package streams

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// max_len is a bound and never a loss: callers see Full, retry, and everything is handled once.
func TestFullIsAnsweredAndNothingIsLost(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := still()
		c.MaxLen = 20
		in := newInstance(t, s, "a", newActiveSet("1"), c)
		added, out, err := in.EnqueueBatch(t.Context(), "1", entries(0, 50))
		require.NoError(t, err)
		require.Equal(t, 20, added)
		require.Equal(t, Full, out)
		added, out, err = in.EnqueueBatch(t.Context(), "1", entries(20, 50))
		require.NoError(t, err)
		require.Zero(t, added)
		require.Equal(t, Full, out, "nothing is read, so nothing is trimmed")

		in.open(t, pipeline.Flow{}, nil)
		for next := 20; next < 500; {
			n, _, err := in.EnqueueBatch(t.Context(), "1", entries(next, min(50, 500-next)))
			require.NoError(t, err)
			next += n
			require.LessOrEqual(t, s.client.XLen(t.Context(), in.opts.Kind.Stream("1")).Val(), c.MaxLen)
			if n == 0 {
				<-time.After(fullMemory / 4)
			}
		}
		redistest.Eventually(t, "500 handled", func() bool { return len(in.done()) == 500 })
		require.Len(t, merge(in), 500)
		redistest.Eventually(t, "trimmed by the visits", func() bool { return s.client.XLen(t.Context(), in.opts.Kind.Stream("1")).Val() == 0 })
	})
}

// A full stream isn't hammered: many callers cost one call each 100 ms.
func TestAFullStreamIsNotHammered(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := still()
		c.MaxLen = 1
		in := newInstance(t, s, "a", newActiveSet("1"), c)
		enqueue(t, in.Manager, "1", 0, 1)
		var calls atomic.Int64
		h := &hook{}
		in.client.AddHook(h)
		h.set(func(redis.Cmder) error { calls.Add(1); return nil }, nil)
		begin := time.Now()
		var refused atomic.Int64
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for time.Since(begin) < 5*fullMemory || refused.Load() <= 1000 {
					if out, err := in.Enqueue(t.Context(), "1", newEntry("x")); err == nil && out == Full {
						refused.Add(1)
					}
				}
			})
		}
		wg.Wait()
		most := (int64(time.Since(begin)/fullMemory) + 1) * batchCalls
		require.LessOrEqual(t, calls.Load(), most, "one per caller and 100 ms at most")
	})
}

// During a pause no entry is read, the stream is not cleaned up, and unread entries stay.
func TestPausedIsNeitherReadNorCleanedUp(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1")
		in := newInstance(t, s, "a", active, quick())
		enqueue(t, in.Manager, "1", 0, 1)
		release := make(chan struct{})
		in.open(t, pipeline.Flow{}, func(*message.Message) error { <-release; return nil })
		free := sync.OnceFunc(func() { close(release) })
		t.Cleanup(free)
		redistest.Eventually(t, "in flight, so that it is not idle before the pause", func() bool { return in.inFlight.Load() == 1 })
		active.set(Activation{ID: "1", Paused: true})
		in.Refresh()
		redistest.Eventually(t, "paused", func() bool { return in.log.Count("paused=true") == 1 })
		free()
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 1 })
		var reads atomic.Int64
		h := &hook{}
		in.client.AddHook(h)
		stream := in.opts.Kind.Stream("1")
		h.set(func(cmd redis.Cmder) error {
			if strings.EqualFold(cmd.Name(), "xreadgroup") {
				reads.Add(1)
			}
			return nil
		}, nil)
		require.Never(t, func() bool { return s.client.Exists(t.Context(), stream).Val() == 0 }, 2*quick().IdleTimeout, 10*time.Millisecond, "drained and paused is not cleaned up")
		enqueue(t, in.Manager, "1", 1, 5)
		require.Never(t, func() bool { return len(in.done()) > 1 }, 100*time.Millisecond, 10*time.Millisecond)
		require.LessOrEqual(t, reads.Load(), int64(1), "one may have been under way")

		// One that is paused from the start is not started.
		active.set(Activation{ID: "2", Paused: true})
		in.Refresh()
		require.Never(t, func() bool { return in.isRunning("2") }, 4*quick().ReconcileInterval, 5*time.Millisecond)

		active.set(Activation{ID: "1"})
		redistest.Eventually(t, "resumed", func() bool { return len(in.done()) == 6 })
	})
}

// Promise 9 for this layer: everything in Redis is lost under a running reader. The stream comes
// back with another incarnation, which the feeder sees, and the readers go on.
func TestWipedStreamsComeBackWithANewIncarnation(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet("1"), still())
		in.open(t, pipeline.Flow{}, nil)
		enqueue(t, in.Manager, "1", 0, 1)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 1 })
		before, err := in.Inspect(t.Context(), "1")
		require.NoError(t, err)
		stream := in.opts.Kind.Stream("1")
		if s.Name == "miniredis" {
			require.NoError(t, s.client.FlushAll(t.Context()).Err())
		} else { // other tests share the server: wipe what is ours
			require.NoError(t, s.client.Del(t.Context(), stream, MetaKey(stream)).Err())
		}
		redistest.Eventually(t, "made again", func() bool {
			st, err := in.Inspect(t.Context(), "1")
			return err == nil && st.Exists && st.Incarnation != "" && st.Incarnation != before.Incarnation
		})
		enqueue(t, in.Manager, "1", 1, 3)
		redistest.Eventually(t, "reading goes on", func() bool { return len(in.done()) == 4 })
	})
}

// Another instance has cleaned the stream up: the reader here ends quietly, and starts again with
// the next message.
func TestStreamDeletedByAnotherInstance(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1")
		c := still()
		c.ReconcileInterval = time.Second // two rounds in between would activate the stream again
		in := newInstance(t, s, "a", active, c)
		in.open(t, pipeline.Flow{}, nil)
		redistest.Eventually(t, "running", func() bool { return in.isRunning("1") })
		require.NoError(t, active.Deactivate(t.Context(), "1"))
		stream := in.opts.Kind.Stream("1")
		require.NoError(t, s.client.Del(t.Context(), stream, MetaKey(stream)).Err())
		redistest.Eventually(t, "stopped", func() bool { return !in.isRunning("1") })
		require.Zero(t, in.log.Count("level=WARN"), in.log.String())
		require.Zero(t, s.client.Exists(t.Context(), stream, MetaKey(stream)).Val(), "nothing is left behind")
		enqueue(t, in.Manager, "1", 0, 1)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 1 })
	})
}

// An instance was killed between the two steps of an idle stop, or read an old active set. The
// stream exists and is not active. An instance that reads it activates it again.
func TestAStreamOffTheActiveSetIsReactivated(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1")
		in := newInstance(t, s, "a", active, still())
		in.open(t, pipeline.Flow{}, nil)
		redistest.Eventually(t, "running", func() bool { return in.isRunning("1") })
		require.NoError(t, active.Deactivate(t.Context(), "1"))
		redistest.Eventually(t, "put back", func() bool { return active.has("1") })
	})
}

// failingCleanUps opens an instance with the stream 1, whose clean-ups fail until it is repaired.
func failingCleanUps(t *testing.T, s server) (in *instance, active *activeSet, repair func()) {
	t.Helper()
	active = newActiveSet("1")
	in = newInstance(t, s, "a", active, quick())
	h := &hook{}
	in.client.AddHook(h)
	hash := in.scripts.delete.Hash()
	h.set(func(cmd redis.Cmder) error {
		if strings.HasPrefix(strings.ToLower(cmd.Name()), "eval") && strings.Contains(fmt.Sprint(cmd.Args()[1]), hash) {
			return errInjected
		}
		return nil
	}, nil)
	in.open(t, pipeline.Flow{}, nil) // not before, because the stream is idle at once
	return in, active, func() { h.set(nil, nil) }
}

// A clean-up that fails is warned about, counted and tried again, and never fails the stop.
func TestACleanUpThatFailsIsTriedAgain(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in, active, repair := failingCleanUps(t, s)
		redistest.Eventually(t, "stopped all the same", func() bool { return in.log.Count("stream stopped") == 1 })
		require.False(t, in.isRunning("1"))
		stream := in.opts.Kind.Stream("1")
		require.Equal(t, int64(1), s.client.Exists(t.Context(), stream).Val())
		redistest.Eventually(t, "tried again", func() bool { return in.log.Count("clean-up failed again") >= 2 })
		require.GreaterOrEqual(t, in.log.Count("level=WARN"), 3)
		repair()
		redistest.Eventually(t, "cleaned up", func() bool { return s.client.Exists(t.Context(), stream, MetaKey(stream)).Val() == 0 })
		require.False(t, active.has("1"))
	})
}

// The same, and an entry comes meanwhile: the retry sees it and puts the stream back.
func TestACleanUpThatFailedPutsBackWhatHasWork(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in, _, repair := failingCleanUps(t, s)
		redistest.Eventually(t, "stopped", func() bool { return in.log.Count("stream stopped") == 1 })
		n, err := in.addEntries(t.Context(), "1", entries(0, 1))
		require.NoError(t, err)
		require.Equal(t, 1, n, "the stream exists and has no reader")
		repair()
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 1 })
	})
}

// The active set can't be read or changed: running streams go on.
func TestActivationsThatFail(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1")
		active.fail = errInjected // before the stream could be idle
		in := newInstance(t, s, "a", active, quick())
		in.open(t, pipeline.Flow{}, nil)
		redistest.Eventually(t, "running", func() bool { return in.isRunning("1") })
		active.mu.Lock()
		active.failActive = errInjected
		active.mu.Unlock()
		redistest.Eventually(t, "idle stop refused", func() bool { return in.log.Count("not taken off the active set") > 0 })
		require.True(t, in.isRunning("1"))
		enqueue(t, in.Manager, "1", 0, 3)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 3 })
		active.mu.Lock()
		active.fail, active.failActive = nil, nil
		active.mu.Unlock()
		redistest.Eventually(t, "stopped", func() bool { return !in.isRunning("1") })
	})
}

// The lost wake-up race on the living thing: two instances whose idle timeout is about as long as
// the gaps between messages. Whatever was answered Added is handled, without any sweep.
func TestNothingIsStrandedWhenIdleStopsAndMessagesMeet(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.IdleTimeout, c.ReconcileInterval = 5*time.Millisecond, 2*time.Millisecond
		active := newActiveSet()
		a, b := newInstance(t, s, "a", active, c), newInstance(t, s, "b", active, c)
		a.open(t, pipeline.Flow{}, nil)
		b.open(t, pipeline.Flow{}, nil)
		sent := atomic.Int64{}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				in := []*instance{a, b}[g%2]
				for range 40 {
					id := int64(g/2 + 1)
					e := newEntry(fmt.Sprint(sent.Add(1)))
					out, err := in.Enqueue(context.Background(), fmt.Sprint(id), e)
					for errors.Is(err, ErrVanishing) { // deleted again at once; nothing was added
						out, err = in.Enqueue(context.Background(), fmt.Sprint(id), e)
					}
					if err != nil || out != Added {
						t.Errorf("enqueue: %v %v", out, err)
					}
					<-time.After(time.Duration(rand.Int64N(int64(80 * time.Millisecond))))
				}
			})
		}
		wg.Wait()
		require.Eventually(t, func() bool { return len(merge(a, b)) == int(sent.Load()) }, 2*time.Minute, 5*time.Millisecond, "every message is handled")
		t.Logf("%d idle stops", a.log.Count("reason=idle")+b.log.Count("reason=idle"))
		require.Greater(t, a.log.Count("stream revived")+b.log.Count("stream revived"), 1, "the race was run")
	})
}

// MaxInFlight bounds what is in flight over all streams, and a drain with messages waiting for it
// ends.
func TestMaxInFlight(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := still()
		c.MinConsumers = 8
		in := newInstance(t, s, "a", newActiveSet("1", "2"), c)
		release := make(chan struct{})
		in.open(t, pipeline.Flow{MaxInFlight: 3}, func(*message.Message) error { <-release; return nil })
		enqueue(t, in.Manager, "1", 0, 10)
		enqueue(t, in.Manager, "2", 10, 10)
		redistest.Eventually(t, "three in flight", func() bool { return in.inFlight.Load() == 3 })
		require.Never(t, func() bool { return in.inFlight.Load() > 3 }, 100*time.Millisecond, 5*time.Millisecond)
		close(release)
		redistest.Eventually(t, "all handled", func() bool { return len(in.done()) == 20 })
		require.Equal(t, int64(3), in.most.Load())
	})
}

func TestTheGateStopsReading(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		var open atomic.Bool
		in := newInstance(t, s, "a", newActiveSet("1"), still())
		in.open(t, pipeline.Flow{Gate: open.Load}, nil)
		enqueue(t, in.Manager, "1", 0, 5)
		require.Never(t, func() bool { return len(in.done()) > 0 }, 100*time.Millisecond, 5*time.Millisecond)
		open.Store(true)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 5 })
	})
}

func TestStatusesOverAllInstances(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet()
		active.set(Activation{ID: "1", TotalCount: 1000})
		a, b := newInstance(t, s, "host-a-1", active, still()), newInstance(t, s, "host-b-2", active, still())
		release := make(chan struct{})
		started := make(chan struct{}, 10)
		a.open(t, pipeline.Flow{}, func(*message.Message) error { started <- struct{}{}; <-release; return nil })
		free := sync.OnceFunc(func() { close(release) })
		t.Cleanup(free) // before the instance is closed, which waits for its handler
		none, _, err := b.Look(t.Context(), "99")
		require.NoError(t, err)
		require.Empty(t, none)
		enqueue(t, a.Manager, "1", 0, 1)
		<-started
		b.open(t, pipeline.Flow{}, nil)
		var got []InstanceStatus
		redistest.Eventually(t, "both tell", func() bool {
			got, _, err = b.Look(t.Context(), "1")
			return err == nil && len(got) == 2 && got[0].InFlight == 1
		})
		require.Equal(t, "host-a-1", got[0].Instance)
		require.Equal(t, a.opts.Kind.Stream("1"), got[0].Stream)
		require.Equal(t, a.opts.Kind.Group("1"), got[0].Group)
		require.Equal(t, 2, got[0].Slots)
		require.WithinDuration(t, time.Now(), got[0].LastMessage, 10*time.Second)
		require.WithinDuration(t, time.Now(), got[0].Since, 10*time.Second)
		require.Equal(t, "host-b-2", got[1].Instance)
		require.True(t, got[1].LastMessage.IsZero())
		free()
		a.close()
		got, _, err = b.Look(t.Context(), "1")
		require.NoError(t, err)
		require.Len(t, got, 1, "who has stopped takes its status along")

		// One that was killed goes stale by the server's clock; one of another version is no harm.
		meta := MetaKey(a.opts.Kind.Stream("1"))
		old := time.Now().Add(-time.Minute).UnixMilli()
		require.NoError(t, s.client.HSet(t.Context(), meta, "i:killed-3", fmt.Sprintf(`%d {"slots":1}`, old), "i:odd-4", "?", "other", "x").Err())
		got, _, err = b.Look(t.Context(), "1")
		require.NoError(t, err)
		require.Len(t, got, 1)
	})
}

// A sweep finds streams without activation, after a grace, and nothing else.
func TestSweepFindsOrphans(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1")
		in := newInstance(t, s, "a", active, still())
		ctx := t.Context()
		for _, key := range []string{in.opts.Kind.Stream("1"), in.opts.Kind.Stream("2"), in.opts.Kind.StreamPrefix + "x:y", strings.ToLower(in.opts.Kind.StreamPrefix) + "3"} {
			require.NoError(t, s.client.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"message", "foreign"}}).Err())
		}
		require.NoError(t, in.Ensure(ctx, "1"))
		sweep := func(grace time.Duration) (found []string) {
			require.NoError(t, in.Sweep(ctx, grace, func(_ context.Context, id string) error {
				found = append(found, id)
				return nil
			}))
			return found
		}
		require.Empty(t, sweep(20*time.Millisecond), "seen for the first time")
		<-time.After(20 * time.Millisecond)
		require.Equal(t, []string{"2"}, sweep(20*time.Millisecond))
		active.set(Activation{ID: "2"})
		require.Empty(t, sweep(0))
		require.NoError(t, active.Deactivate(ctx, "2"))
		require.Empty(t, sweep(20*time.Millisecond), "the grace starts again")
		require.ErrorIs(t, in.Sweep(ctx, 0, func(context.Context, string) error { return errInjected }), errInjected)
		in.open(t, pipeline.Flow{}, nil)
		require.NoError(t, in.Sweep(ctx, 0, func(ctx context.Context, id string) error { return active.Activate(ctx, id) }))
		redistest.Eventually(t, "the foreign entries are handled", func() bool { return len(in.done()) == 2 })
	})
}

func TestOpenRefusesWhatItCannotKeep(t *testing.T) {
	s := miniServer(t)
	in := newInstance(t, s, "a", newActiveSet(), still())
	_, err := in.Source().Open(t.Context(), pipeline.Flow{Order: pipeline.OrderPartition})
	require.ErrorContains(t, err, "order")
	bad := still()
	bad.MinConsumers = 99
	_, err = newInstance(t, s, "b", newActiveSet(), bad).Source().Open(t.Context(), pipeline.Flow{})
	require.ErrorContains(t, err, "min_consumers_per_instance")
	in.open(t, pipeline.Flow{}, nil)
	_, err = in.Source().Open(t.Context(), pipeline.Flow{})
	require.ErrorContains(t, err, "open already")
	_, err = in.sub.Subscribe(t.Context(), "")
	require.ErrorContains(t, err, "started or stopped before")
	in.close()
	sub, err := in.Source().Open(t.Context(), pipeline.Flow{})
	require.NoError(t, err, "after a drain it can be opened again")
	require.NoError(t, sub.Close())
}
