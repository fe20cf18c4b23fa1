package streams

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// reclaimFor runs plugins/reclaim for an instance; gone selects the dead instances.
func reclaimFor(t *testing.T, in *instance, gone func(instance string) bool) {
	c := reclaim.DefaultConfig()
	c.Interval, c.DeadCheck, c.PresenceTimeout = 20*time.Millisecond, 10*time.Millisecond, 30*time.Millisecond
	r := reclaim.NewReclaimer(reclaim.Options{
		Config: c, Instance: in.opts.Instance, Targets: []reclaim.Target{in.ReclaimTarget()}, Logger: in.Manager.log,
		Alive: func(_ context.Context, instances ...string) (map[string]bool, error) {
			out := map[string]bool{}
			for _, i := range instances {
				out[i] = !gone(i)
			}
			return out, nil
		},
	})
	require.NoError(t, r.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
}

func briefly(*message.Message) error {
	<-time.After(5 * time.Millisecond)
	return nil
}

// Two instances share a stream, and A drains while B works. B handles each entry once, also those
// that A has released. A's reader is removed. After idle_timeout the stream is deleted.
func TestOneInstanceDrainsWhileAnotherWorks(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.BatchSize = 20
		c.IdleTimeout = 500 * time.Millisecond
		c.Tiers = []Tier{{0, 4}}
		active := newActiveSet("1")
		a, b := newInstance(t, s, "a", active, c), newInstance(t, s, "b", active, c)
		// Each has something in flight before either goes on: else the quicker one may handle
		// everything.
		var both sync.WaitGroup
		both.Add(2)
		for _, in := range []*instance{a, b} {
			here := sync.OnceFunc(both.Done)
			in.open(t, pipeline.Flow{}, func(m *message.Message) error {
				here()
				both.Wait()
				return briefly(m)
			})
			t.Cleanup(here) // also when something below fails
		}
		var drained atomic.Bool
		reclaimFor(t, b, func(name string) bool { return name == "a" && drained.Load() })
		enqueue(t, a.Manager, "1", 0, 200)
		redistest.Eventually(t, "both work", func() bool { return len(a.done()) > 5 && len(b.done()) > 5 })
		a.close()
		drained.Store(true)
		stream, group := a.opts.Kind.Stream("1"), a.opts.Kind.Group("1")
		stopped := len(a.done())
		if st, err := b.Inspect(t.Context(), "1"); err == nil && !st.Drained {
			require.Contains(t, consumers(t, s, stream, group), "b-0", "B goes on")
		}
		redistest.Eventually(t, "everything handled", func() bool { return len(merge(a, b)) == 200 })
		for payload, runs := range merge(a, b) {
			require.Equal(t, 1, runs, payload)
		}
		require.Len(t, a.done(), stopped, "A handles nothing after its drain")
		redistest.Eventually(t, "A's reader is gone", func() bool {
			list, err := s.client.XInfoConsumers(t.Context(), stream, group).Result()
			return err != nil || !slices.ContainsFunc(list, func(c redis.XInfoConsumer) bool { return c.Name == "a-0" })
		})
		redistest.Eventually(t, "idle stop", func() bool {
			return s.client.Exists(t.Context(), stream, MetaKey(stream)).Val() == 0 && !b.isRunning("1")
		})
		require.False(t, active.has("1"))
	})
}

// Promise 3: an instance is cut off in the middle, with entries in flight, unacknowledged and
// unread. The other one handles all of them without waiting for min_idle, and cleans up after it.
func TestAKilledInstanceIsHealedWithoutWaitingForMinIdle(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.StopTimeout = 200 * time.Millisecond
		c.Tiers = []Tier{{0, 4}}
		active := newActiveSet("1")
		a, b := newInstance(t, s, "a", active, c), newInstance(t, s, "b", active, c)
		var killed atomic.Bool
		h := &hook{}
		a.client.AddHook(h)
		a.open(t, pipeline.Flow{}, func(*message.Message) error {
			if killed.Load() {
				return errInjected
			}
			return briefly(nil)
		})
		enqueue(t, b.Manager, "1", 0, 150)
		redistest.Eventually(t, "A works", func() bool { return len(a.done()) > 10 })
		killed.Store(true)
		h.set(func(redis.Cmder) error { return errInjected }, nil) // A has no connection
		b.open(t, pipeline.Flow{}, briefly)
		reclaimFor(t, b, func(name string) bool { return name == "a" })
		redistest.Eventually(t, "everything handled", func() bool { return len(merge(a, b)) == 150 })
		stream := a.opts.Kind.Stream("1")
		redistest.Eventually(t, "nothing left", func() bool { return s.client.Exists(t.Context(), stream, MetaKey(stream)).Val() == 0 })
	})
}

// Paused streams are left alone by the reclaimer.
func TestReclaimTargetLeavesPausedStreamsOut(t *testing.T) {
	s := miniServer(t)
	active := newActiveSet("1", "2")
	in := newInstance(t, s, "a", active, still())
	target := in.ReclaimTarget()
	require.Empty(t, target.Streams(), "before the source is opened")
	in.open(t, pipeline.Flow{}, nil)
	redistest.Eventually(t, "both", func() bool { return len(target.Streams()) == 2 })
	active.set(Activation{ID: "2", Paused: true})
	redistest.Eventually(t, "one", func() bool { return len(target.Streams()) == 1 })
	st := target.Streams()[0]
	require.Equal(t, in.opts.Kind.Stream("1"), st.Name)
	require.Equal(t, "POINT", st.Shard)
	require.Equal(t, "a-0", st.Consumer)
	require.Equal(t, MetaKey(st.Name), st.Meta)
	require.Equal(t, s.prefix, target.Domain())
	require.Equal(t, still().MinIdle, target.MinIdle())
}
