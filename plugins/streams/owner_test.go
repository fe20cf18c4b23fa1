package streams

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// deployment returns an instance of a deployment with an id of its own.
func deployment(t *testing.T, s server, id string, active Activations, c Config) *instance {
	in := &instance{client: s.Client(t), log: &redistest.Lines{}, runs: map[string]int{}}
	in.Manager = NewManager(Options{
		Kind: s.kind(), Config: func() Config { return c }, Client: func() redis.UniversalClient { return in.client },
		Activations: active, Instance: id + "-1", Owner: func() string { return id }, Logger: slog.New(slog.NewTextHandler(in.log, nil)),
	})
	return in
}

// A stream of another deployment is neither read nor fed, trimmed or deleted, and it is reported.
func TestAStreamOfAnotherDeployment(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		ours, theirs := deployment(t, s, "ours", newActiveSet("1", "2"), still()), deployment(t, s, "theirs", newActiveSet("1"), still())
		require.NoError(t, theirs.Ensure(ctx, "1"))
		enqueue(t, theirs.Manager, "1", 0, 3)
		stream := theirs.opts.Kind.Stream("1")

		_, err := ours.Enqueue(ctx, "1", newEntry("x"))
		require.ErrorIs(t, err, ErrForeign)
		require.ErrorContains(t, err, "theirs")
		_, _, err = ours.EnqueueBatch(ctx, "1", entries(0, 2))
		require.ErrorIs(t, err, ErrForeign)
		require.ErrorIs(t, ours.Ensure(ctx, "1"), ErrForeign)
		_, err = ours.cleanUp(ctx, "1")
		require.ErrorIs(t, err, ErrForeign)
		require.False(t, ours.Decommission(ctx, "1"))
		require.NoError(t, ours.opts.Activations.Activate(ctx, "1"))
		require.EqualValues(t, 3, s.client.XLen(ctx, stream).Val())
		require.Equal(t, 1, ours.log.Count("a stream belongs to another deployment"))
		require.Positive(t, ours.log.Count("owner=theirs"))
		st, err := ours.Inspect(ctx, "1")
		require.NoError(t, err)
		require.True(t, st.Foreign)
		require.Equal(t, "theirs", st.Owner)

		// The sweep skips it, and finds the other orphan.
		require.NoError(t, theirs.Ensure(ctx, "3"))
		require.NoError(t, s.client.XAdd(ctx, &redis.XAddArgs{Stream: ours.opts.Kind.Stream("4"), Values: []any{"message", "x"}}).Err())
		var found []string
		require.NoError(t, ours.Sweep(ctx, 0, func(_ context.Context, id string) error { found = append(found, id); return nil }))
		require.Equal(t, []string{"4"}, found)
		require.InDelta(t, 1, testutil.ToFloat64(ours.opts.Metrics.foreigns.WithLabelValues("POINT", "false")), 0)

		// Its own readers read it; ours read the other stream.
		ours.open(t, pipeline.Flow{}, nil)
		enqueue(t, ours.Manager, "2", 10, 1)
		redistest.Eventually(t, "the other stream is read", func() bool { return len(ours.done()) == 1 })
		redistest.Eventually(t, "it is counted", func() bool {
			return testutil.ToFloat64(ours.opts.Metrics.foreigns.WithLabelValues("POINT", "true")) == 1
		})
		require.Zero(t, testutil.ToFloat64(ours.opts.Metrics.failures.WithLabelValues("POINT", "start")))
		require.False(t, ours.isRunning("1"))
		require.Empty(t, s.client.XInfoConsumers(ctx, stream, theirs.opts.Kind.Group("1")).Val())
		theirs.open(t, pipeline.Flow{}, nil)
		redistest.Eventually(t, "all are handled there", func() bool { return len(theirs.done()) == 3 })

		// Handed over, it is read here.
		theirs.close()
		require.NoError(t, s.client.HDel(ctx, MetaKey(stream), "owner").Err())
		redistest.Eventually(t, "it starts here", func() bool { return ours.isRunning("1") })
		require.Equal(t, "ours", s.client.HGet(ctx, MetaKey(stream), "owner").Val())
		redistest.Eventually(t, "it no longer counts", func() bool {
			return testutil.ToFloat64(ours.opts.Metrics.foreigns.WithLabelValues("POINT", "true")) == 0
		})
	})
}

// A stream without an owner is adopted once, by whichever command meets it first, and not on a lost
// companion's account.
func TestAStreamWithoutAnOwnerIsAdoptedOnce(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		before := newInstance(t, s, "before", newActiveSet(), still()) // a version without owners
		a, b := deployment(t, s, "a", newActiveSet(), still()), deployment(t, s, "b", newActiveSet(), still())
		owner := func(id string) string { return s.client.HGet(ctx, MetaKey(a.opts.Kind.Stream(id)), "owner").Val() }
		for id, adopt := range map[string]func(*instance, string) error{
			"1": func(in *instance, id string) error { return in.Ensure(ctx, id) },
			"2": func(in *instance, id string) error { _, err := in.Enqueue(ctx, id, newEntry("x")); return err },
			"3": func(in *instance, id string) error {
				_, err := parseVisited(in.scripts.visit.Run(ctx, in.client, in.keys(id), append(in.args(id), in.statusField(), "{}")...).Result())
				return in.refusal(id, err)
			},
		} {
			require.NoError(t, before.Ensure(ctx, id))
			st, err := a.Inspect(ctx, id)
			require.NoError(t, err)
			require.Empty(t, owner(id))
			require.False(t, st.Foreign)
			require.NoError(t, adopt(a, id))
			require.Equal(t, "a", owner(id))
			require.ErrorIs(t, adopt(b, id), ErrForeign)
			again, err := a.Inspect(ctx, id)
			require.NoError(t, err)
			require.Equal(t, st.Incarnation, again.Incarnation, "adopting loses nothing")

			require.NoError(t, s.client.Del(ctx, a.opts.Kind.Stream(id)).Err())
			require.ErrorIs(t, b.Ensure(ctx, id), ErrForeign, "its owner makes it again")
			require.NoError(t, a.Ensure(ctx, id))
			require.Equal(t, "a", owner(id))
			require.NoError(t, before.Ensure(ctx, id), "a version without owners goes on")
		}
	})
}

// A stream that changes its owner while it is read here is left to the other deployment.
func TestAReaderLeavesAStreamThatChangedItsOwner(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		in := deployment(t, s, "ours", newActiveSet("1"), still())
		release := make(chan struct{})
		in.open(t, pipeline.Flow{}, func(*message.Message) error { <-release; return nil })
		redistest.Eventually(t, "it runs", func() bool { return in.isRunning("1") })
		enqueue(t, in.Manager, "1", 0, 1)
		redistest.Eventually(t, "one is in flight", func() bool { return in.inFlight.Load() == 1 })
		require.NoError(t, s.client.HSet(ctx, MetaKey(in.opts.Kind.Stream("1")), "owner", "theirs").Err())
		close(release)
		redistest.Eventually(t, "it is not read any more", func() bool { return !in.isRunning("1") })
		redistest.Eventually(t, "and not started again", func() bool {
			return testutil.ToFloat64(in.opts.Metrics.foreigns.WithLabelValues("POINT", "true")) == 1
		})
		redistest.Eventually(t, "what was in flight is finished", func() bool { return len(in.done()) == 1 })
	})
}

// While Redis is unavailable a round stops at its first pipeline, so that starts and stops go on.
func TestARoundStopsWhenRedisIsUnavailable(t *testing.T) {
	s := miniServer(t)
	in := newInstance(t, s, "a", newActiveSet(), still())
	h := &hook{}
	in.client.AddHook(h)
	sub := &subscription{m: in.Manager, Life: pipeline.NewLife(0, nil), running: map[string]*running{}}
	for id := range int64(3*visitBatch + 1) {
		sub.running[fmt.Sprint(id+1)] = sub.newRunning(Activation{ID: fmt.Sprint(id + 1)})
	}
	calls := 0
	h.set(func(redis.Cmder) error { calls++; return errInjected }, nil)
	sub.visitAll(nil)
	require.Equal(t, 1, calls)
	require.Positive(t, in.log.Count("streams could not be visited\" kind=POINT streams=301"))

	calls = 0
	h.set(func(redis.Cmder) error { calls++; return reply("OOM") }, nil)
	sub.visitAll(nil)
	require.Equal(t, 4, calls, "all streams are visited when the server answers")
}

// The time for draining also bounds the operations that the control loop has started.
func TestADrainBoundsWhatTheControlLoopHasStarted(t *testing.T) {
	s := miniServer(t)
	c := still()
	c.StopTimeout = time.Millisecond
	in := newInstance(t, s, "a", newActiveSet("1"), c)
	started, ended := make(chan struct{}), make(chan error, 1)
	in.opts.Created = func(ctx context.Context, _, _ string) error {
		close(started)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	in.open(t, pipeline.Flow{}, nil)
	<-started
	require.NoError(t, in.sub.Close())
	require.ErrorIs(t, <-ended, context.Canceled, "not the timeout of one call")
}

// The readers check the fence: no handler starts while the fence is in the future.
func TestNoHandlerStartsBeforeTheFence(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		var fenced atomic.Bool
		var calls atomic.Int64
		in := newInstance(t, s, "a", newActiveSet("1"), still())
		fenced.Store(true)
		in.opts.Fence = func() time.Time {
			calls.Add(1)
			if fenced.Load() {
				return time.Now().Add(time.Hour)
			}
			return time.Time{}
		}
		var early atomic.Int64
		in.open(t, pipeline.Flow{}, func(*message.Message) error {
			if fenced.Load() {
				early.Add(1)
			}
			return nil
		})
		enqueue(t, in.Manager, "1", 0, 3)
		redistest.Eventually(t, "the fence is read", func() bool { return calls.Load() >= 3 })
		require.Empty(t, in.done())
		fenced.Store(false)
		redistest.Eventually(t, "it goes on behind the fence", func() bool { return len(in.done()) == 3 })
		require.Zero(t, early.Load())
	})
}
