package streams

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// idleInstance reads streams that are idle: only a wake-up ends the poll interval of an hour.
func idleInstance(t *testing.T, s server, ids ...string) *instance {
	c := still()
	c.PollInterval, c.InitialPollInterval = time.Hour, time.Hour
	in := newInstance(t, s, "reader", newActiveSet(ids...), c)
	var reads atomic.Int64
	h := &hook{}
	in.client.AddHook(h)
	h.set(nil, func(cmd goredis.Cmder) {
		if strings.EqualFold(cmd.Name(), "xreadgroup") {
			reads.Add(1)
		}
	})
	in.open(t, pipeline.Flow{}, nil)
	redistest.Eventually(t, "each stream is read once", func() bool { return reads.Load() == int64(len(ids)) })
	return in
}

func TestAnEnqueueWakesTheReadersOfOtherInstances(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := idleInstance(t, s, "1", "2", "3")
		other := newInstance(t, s, "other", newActiveSet("1", "2", "3"), still())
		enqueue(t, other.Manager, "2", 0, 1)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 1 })
		enqueue(t, other.Manager, "2", 1, 1)
		enqueue(t, other.Manager, "3", 2, 1)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 3 })
		require.Zero(t, testutil.ToFloat64(in.opts.Metrics.failures.WithLabelValues("POINT", "wake")))
	})
}

// A wake-up stream that can't be used costs at most the poll interval. No enqueue fails.
func TestALostWakeUpCostsThePollInterval(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		require.NoError(t, s.client.Set(t.Context(), s.kind().WakeKey(), "no stream", 0).Err())
		in := newInstance(t, s, "reader", newActiveSet("1"), still())
		in.open(t, pipeline.Flow{}, nil)
		other := newInstance(t, s, "other", newActiveSet("1"), still())
		require.NoError(t, other.Ensure(t.Context(), "1"))
		enqueue(t, other.Manager, "1", 0, 3)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 3 })
		redistest.Eventually(t, "counted", func() bool {
			return testutil.ToFloat64(in.opts.Metrics.failures.WithLabelValues("POINT", "wake")) > 0
		})
		require.Equal(t, 1, in.log.Count("the wake-up stream can't be used"))
	})
}

// Each enqueue adds a wake-up, and the stream of them stays small.
func TestTheWakeUpStreamIsBounded(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet("1"), still())
		require.NoError(t, in.Ensure(t.Context(), "1"))
		key := in.opts.Kind.WakeKey()
		enqueue(t, in.Manager, "1", 0, 1)
		last := s.client.XRevRangeN(t.Context(), key, "+", "-", 1).Val()
		require.Len(t, last, 1)
		require.Equal(t, map[string]any{"id": "1", "by": "a"}, last[0].Values)
		pipe := s.client.Pipeline()
		for i := range 3 * wakeLength {
			pipe.XAdd(t.Context(), &goredis.XAddArgs{Stream: key, Values: []any{"id", strconv.Itoa(i), "by", "b"}})
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		enqueue(t, in.Manager, "1", 1, 1)
		require.LessOrEqual(t, s.client.XLen(t.Context(), key).Val(), int64(wakeLength+200))
		require.NoError(t, in.Sweep(t.Context(), 0, func(_ context.Context, id string) error {
			require.Equal(t, "1", id, "the wake-up stream is no orphan")
			return nil
		}))
	})
}

// More wake-ups than one read returns are read at once.
func TestManyWakeUpsAreReadAtOnce(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := idleInstance(t, s, "1")
		pipe := s.client.Pipeline()
		for range 2 * wakeLength {
			pipe.XAdd(t.Context(), &goredis.XAddArgs{Stream: in.opts.Kind.WakeKey(), Values: []any{"id", "7", "by", "b"}})
		}
		pipe.XAdd(t.Context(), &goredis.XAddArgs{Stream: in.opts.Kind.WakeKey(), Values: []any{"nothing", "of use"}})
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		other := newInstance(t, s, "other", newActiveSet("1"), still())
		enqueue(t, other.Manager, "1", 0, 1)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 1 })
	})
}

// An idle stream is visited when its idle timeout may have passed, and not in each round.
func TestIdleStreamsAreNotVisited(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet("1", "2"), still())
		var visits atomic.Int64
		h := &hook{}
		in.client.AddHook(h)
		h.set(func(cmd goredis.Cmder) error {
			if strings.HasPrefix(cmd.Name(), "eval") && cmd.Args()[1] == in.scripts.visit.Hash() {
				visits.Add(1)
			}
			return nil
		}, nil)
		in.open(t, pipeline.Flow{}, nil)
		enqueue(t, in.Manager, "1", 0, 3)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 3 })
		settled := int64(-1)
		require.Eventually(t, func() bool {
			before := settled
			settled = visits.Load()
			return settled > 0 && settled == before
		}, 2*time.Minute, 10*in.opts.Config().ReconcileInterval, "the visits end")
		enqueue(t, in.Manager, "2", 3, 1)
		redistest.Eventually(t, "a change causes a visit", func() bool { return visits.Load() > settled })
	})
}

// Whatever happens to the wake-up stream, an entry of another instance is handled within the poll
// interval.
func TestNoEntryDependsOnAWakeUp(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		const streams, steps = 5, 25
		c := still()
		c.PollInterval = 200 * time.Millisecond
		in, other := newInstance(t, s, "reader", newActiveSet("1", "2", "3", "4", "5"), c), newInstance(t, s, "other", newActiveSet("1", "2", "3", "4", "5"), c)
		key := in.opts.Kind.WakeKey()
		var unreadable atomic.Bool
		h := &hook{}
		in.client.AddHook(h)
		h.set(func(cmd goredis.Cmder) error {
			if unreadable.Load() && cmd.Name() == "xrange" && cmd.Args()[1] == key {
				return errInjected
			}
			return nil
		}, nil)
		in.open(t, pipeline.Flow{}, nil)
		write := func(values ...any) func() {
			return func() { _ = s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: key, Values: values}).Err() }
		}
		disturb := []func(){
			func() {},
			func() { unreadable.Store(true) },
			func() { unreadable.Store(false) },
			func() { s.client.Del(t.Context(), key) },
			func() { s.client.XTrimMaxLen(t.Context(), key, 0) },
			func() { s.client.Set(t.Context(), key, "no stream", 0) },
			func() {
				s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: key, ID: "18446744073709551615-1", Values: []any{"id", "1"}})
			},
			write("id", "no number", "by", "other"),
			write("id", "99999999999999999999999", "by", "other"),
			write("id", "-1", "by", "other"),
			write("id", "77", "by", "somebody else"),
			write("nothing", "of use"),
			write("id", "1", "by", "reader"),
		}
		seed := time.Now().UnixNano()
		t.Log("seed", seed)
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		for step := range steps {
			disturb[random.IntN(len(disturb))]()
			begin := time.Now()
			enqueue(t, other.Manager, fmt.Sprint(random.Int64N(streams)+1), step, 1)
			redistest.Eventually(t, "handled", func() bool { return len(in.done()) == step+1 })
			require.Less(t, time.Since(begin), c.PollInterval+c.PollInterval/10+10*time.Second)
		}
	})
}
