package streams

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// graced is quick with a grace for foreign groups, and required ones.
func graced(grace time.Duration, required ...string) Config {
	c := quick()
	c.IdleTimeout = time.Millisecond
	c.ReconcileInterval = time.Millisecond
	c.ForeignGroupGrace, c.RequiredGroups = grace, required
	return c
}

// The own group decides; a foreign one delays for its grace, and then until it has caught up; a
// required one always.
func TestWhatAForeignGroupDelays(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet()
		lenient := newInstance(t, s, "lenient", active, graced(time.Hour))
		strict := newInstance(t, s, "strict", active, graced(0))
		bound := newInstance(t, s, "bound", active, graced(0, "audit"))
		ctx := t.Context()
		stream, own := lenient.opts.Kind.Stream("1"), lenient.opts.Kind.Group("1")
		require.NoError(t, lenient.Ensure(ctx, "1"))
		handle := func(group string) {
			for ids := readSome(t, s, stream, group, "c-0", 10); ids != nil; ids = readSome(t, s, stream, group, "c-0", 10) {
				require.NoError(t, s.client.XAck(ctx, stream, group, ids...).Err())
			}
		}
		add := func(from, n int) {
			added, err := lenient.addEntries(ctx, "1", entries(from, n))
			require.NoError(t, err)
			require.Equal(t, n, added)
		}
		names := func(list []DelayingGroup) (all []string) {
			for _, g := range list {
				all = append(all, g.Group)
			}
			return all
		}
		add(0, 5)
		require.NoError(t, s.client.XGroupCreate(ctx, stream, "debug", "0").Err())
		require.Empty(t, visitOnce(t, strict, "1").delaying, "it holds no more than the own group")
		handle(own)

		got := visitOnce(t, lenient, "1")
		require.Equal(t, []string{"debug"}, names(got.delaying))
		require.False(t, got.delaying[0].Ignored)
		require.False(t, got.drained, "not to be deleted yet")
		require.EqualValues(t, 5, got.length)
		st, err := lenient.Inspect(ctx, "1")
		require.NoError(t, err)
		require.True(t, st.Drained, "the own group has nothing left")
		require.Equal(t, []string{"debug"}, names(st.Delaying))
		require.Zero(t, got.trimmed)

		got = visitOnce(t, strict, "1")
		require.True(t, got.delaying[0].Ignored)
		require.True(t, got.drained)
		require.EqualValues(t, 5, got.trimmed)

		// Trimmed entries count as not released. So a group that reads nothing gets no second
		// grace.
		add(5, 5)
		handle(own)
		require.True(t, visitOnce(t, strict, "1").drained)
		require.Equal(t, []string{"debug"}, names(visitOnce(t, lenient, "1").delaying))

		add(10, 5)
		handle(own)
		handle("debug")
		got = visitOnce(t, lenient, "1")
		require.Empty(t, got.delaying, "it has caught up")
		require.EqualValues(t, 5, got.trimmed)
		require.False(t, s.client.HExists(ctx, MetaKey(stream), "foreign").Val(), "and its mark is removed")

		// Required groups are waited for whatever the grace; and a stream that a foreign group
		// holds is deleted after it.
		require.NoError(t, s.client.XGroupCreate(ctx, stream, "audit", "$").Err())
		add(15, 1)
		handle(own)
		handle("debug")
		require.Zero(t, visitOnce(t, bound, "1").trimmed)
		require.Empty(t, visitOnce(t, bound, "1").delaying)
		require.False(t, visitOnce(t, bound, "1").drained)
		require.Zero(t, visitOnce(t, lenient, "1").trimmed)
		for range 3 { // the first may only begin the idle time
			require.False(t, lenient.Decommission(ctx, "1"), "within the grace of audit")
			begin := s.client.Time(ctx).Val()
			redistest.Eventually(t, "the idle time is over", func() bool { return s.client.Time(ctx).Val().Sub(begin) > 2*time.Millisecond })
		}
		require.EqualValues(t, 1, visitOnce(t, strict, "1").trimmed)
		redistest.Eventually(t, "it is deleted after the grace", func() bool { return strict.Decommission(ctx, "1") })
	})
}

// A foreign group that reads along keeps its entries, however long it takes part.
func TestAForeignGroupThatReadsAlong(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet(), graced(time.Hour))
		ctx := t.Context()
		stream, own := in.opts.Kind.Stream("1"), in.opts.Kind.Group("1")
		require.NoError(t, in.Ensure(ctx, "1"))
		require.NoError(t, s.client.XGroupCreate(ctx, stream, "along", "0").Err())
		mark, read := "", []string(nil)
		for i := range 5 {
			_, err := in.addEntries(ctx, "1", entries(i, 1))
			require.NoError(t, err)
			require.NoError(t, s.client.XAck(ctx, stream, own, readSome(t, s, stream, own, "c-0", 1)...).Err())
			if read != nil {
				require.NoError(t, s.client.XAck(ctx, stream, "along", read...).Err())
			}
			got := visitOnce(t, in, "1")
			require.Len(t, got.delaying, 1)
			now := s.client.HGet(ctx, MetaKey(stream), "foreign").Val()
			require.NotEqual(t, mark, now, "its time starts again with every mark that it passes")
			mark = now
			read = readSome(t, s, stream, "along", "c-0", 1)
			require.Len(t, read, 1, "nothing was trimmed before it was read")
		}
	})
}

// A group without readers neither fills a stream forever nor keeps it. The log names the group.
func TestAGroupLeftBehindStallsNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MaxLen, c.ForeignGroupGrace = 10, 50*time.Millisecond
		c.IdleTimeout = 2 * time.Second // a machine may stand still between two batches
		active := newActiveSet()
		in := newInstance(t, s, "a", active, c)
		require.NoError(t, in.Ensure(t.Context(), "1"))
		require.NoError(t, s.client.XGroupCreate(t.Context(), in.opts.Kind.Stream("1"), "debug", "0").Err())
		active.set(Activation{ID: "1"})
		next, _, err := in.EnqueueBatch(t.Context(), "1", entries(0, 50)) // before it could be idle
		require.NoError(t, err)
		in.open(t, pipeline.Flow{}, func(*message.Message) error { return nil })
		for next < 50 {
			n, _, err := in.EnqueueBatch(t.Context(), "1", entries(next, 50-next))
			require.NoError(t, err)
			if next += n; next == 50 {
				break
			}
			redistest.Eventually(t, "room is made", func() bool { return s.client.XLen(t.Context(), in.opts.Kind.Stream("1")).Val() < c.MaxLen })
		}
		redistest.Eventually(t, "all are handled", func() bool { return len(in.done()) == 50 })
		redistest.Eventually(t, "it is reported", func() bool {
			return testutil.CollectAndCount(in.opts.Metrics.delaying) == 1 || !in.isRunning("1")
		})
		redistest.Eventually(t, "the idle stream is deleted", func() bool { return s.client.Exists(t.Context(), in.opts.Kind.Stream("1")).Val() == 0 })
		require.Equal(t, 1, in.log.Count("a foreign consumer group delays"))
		require.Positive(t, in.log.Count("group=debug"))
	})
}

func TestTheGaugeNamesTheGroupsThatDelayMost(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	var all redis.Delays
	for range 50 {
		all.Note("s", []DelayingGroup{{Group: "most"}}, 0)
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"} {
		all.Note("s", []DelayingGroup{{Group: name}}, 0)
	}
	m.delayedBy("POINT", &all)
	require.InDelta(t, 50, testutil.ToFloat64(m.delaying.WithLabelValues("POINT", "most")), 0)
	require.InDelta(t, 2, testutil.ToFloat64(m.delaying.WithLabelValues("POINT", "other")), 0)
	require.Equal(t, 11, testutil.CollectAndCount(m.delaying))
	m.delayedBy("POINT", &redis.Delays{})
	require.Zero(t, testutil.CollectAndCount(m.delaying))
}
