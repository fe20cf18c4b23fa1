package promotion

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// An entry that waits in a stream for long is not lost. It is fed again only when the stream is
// drained.
func TestALostTailIsFedOnlyWhenTheStreamIsDrained(t *testing.T) {
	t.Parallel()
	h := embeddedModelEnv(t)
	h.config.Stream.MaxLen = 100
	hist := h.newHistory()
	in := hist.ins[0]
	for target := range int64(3) {
		hist.offer(target+1, 500)
		hist.run(in, hist.accept(in, hist.offers[target]))
	}
	entries := func() int64 { return hist.watch.XLen(t.Context(), hist.stream).Val() }
	fed := func() float64 { return counted(t, h, "fed_total", "lost_tail") }
	require.EqualValues(t, 3, entries())
	hist.pass(2 * modelGrace)
	hist.run(in, hist.feed(in))
	require.Zero(t, fed())
	require.EqualValues(t, 3, entries())

	for _, e := range hist.watch.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: hist.group, Consumer: "lost", Streams: []string{hist.stream, ">"}, Block: -1}).Val()[0].Messages {
		require.NoError(t, hist.watch.XAck(t.Context(), hist.stream, hist.group, e.ID).Err())
	}
	hist.run(in, hist.feed(in))
	require.Positive(t, fed())
	require.Empty(t, hist.faults)
}

// A large promotion keeps its stream full for hours. A payout whose worker was killed is fed
// meanwhile.
func TestAnOverduePayoutIsFedIntoAFullStream(t *testing.T) {
	t.Parallel()
	h := embeddedModelEnv(t)
	h.config.Stream.MaxLen = 2
	hist := h.newHistory()
	in := hist.ins[0]
	handled := func() { // the oldest entry leaves the stream
		e := hist.watch.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: hist.group, Consumer: "worker", Streams: []string{hist.stream, ">"}, Count: 1, Block: -1}).Val()[0].Messages[0]
		require.NoError(t, hist.watch.XAck(t.Context(), hist.stream, hist.group, e.ID).Err())
	}
	for target := range int64(6) {
		hist.offer(target+1, 500)
		hist.run(in, hist.accept(in, hist.offers[target]))
		if target == 0 {
			handled()
			begun, err := in.ledger.Begin(t.Context(), payouts.Record{
				Key: payouts.Key{Type: "POINT", Promotion: hist.promotion.ID, Target: 1}, SummaryID: 9, Payload: hist.offers[0].payload})
			require.NoError(t, err)
			require.Equal(t, rules.Send, begun.Next)
		}
	}
	hist.pass(modelLease + 2*modelGrace)
	handled()
	require.Eventually(t, func() bool { // that the stream was full is remembered for a moment
		hist.run(in, hist.feed(in))
		return counted(t, h, "fed_total", "overdue") > 0
	}, 2*time.Minute, 20*time.Millisecond)
	require.Zero(t, counted(t, h, "fed_total", "none"), "the stream is full again")
	require.Empty(t, hist.faults)
}

// A stream that is cleaned up in order is not lost, although payouts are unsettled and the feeder
// sees it before its deletion.
func TestACleanUpIsNoLoss(t *testing.T) {
	t.Parallel()
	h := embeddedModelEnv(t)
	hist := h.newHistory()
	in := hist.ins[0]
	hist.offer(1, 500)
	hist.run(in, hist.accept(in, hist.offers[0]))
	recorded := func() string {
		token, err := in.ledger.Incarnation(t.Context(), hist.promotion)
		require.NoError(t, err)
		return token
	}
	lost := func() float64 { return counted(t, h, "streams_lost_total") }

	require.NoError(t, in.ledger.Deactivate(t.Context(), hist.promotion))
	hist.run(in, hist.feed(in))
	require.NotEmpty(t, hist.token())
	require.Empty(t, recorded(), "the deletion comes next")
	require.NoError(t, hist.watch.Del(t.Context(), hist.stream, streams.MetaKey(hist.stream)).Err())
	hist.run(in, hist.feed(in))
	require.Zero(t, lost())

	require.NoError(t, in.ledger.Activate(t.Context(), hist.promotion, 0))
	require.NoError(t, in.manager.Ensure(t.Context(), hist.promotion.StreamID()))
	require.NoError(t, in.ledger.Deactivate(t.Context(), hist.promotion))
	require.NoError(t, in.ledger.Activate(t.Context(), hist.promotion, 0), "put back: it was not drained")
	hist.run(in, hist.feed(in))
	require.Equal(t, hist.token(), recorded())
	require.NoError(t, hist.watch.Del(t.Context(), hist.stream, streams.MetaKey(hist.stream)).Err())
	hist.run(in, hist.feed(in))
	require.EqualValues(t, 1, lost())
}

// An idle stop of one instance, a feeder's round of another and an enqueue of a third meet at every
// step. No stream is lost, whatever the feeder has seen before the deletion.
func TestAnIdleStopDuringARoundIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]func(testing.TB) *modelEnv{"embedded": embeddedModelEnv, "servers": realModelEnv} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := env(t)
			for _, recorded := range []bool{true, false} {
				for feeds, ended := 0, false; !ended; feeds++ {
					for stops, stopped := 0, false; !stopped; stops++ {
						ended, stopped = h.stopDuringARound(t, recorded, feeds, stops)
					}
				}
			}
		})
	}
}

// stopDuringARound stops an idle stream after some steps of a feeder's round, and adds an entry after
// some steps of that stop. It reports whether the two had ended before.
func (h *modelEnv) stopDuringARound(t *testing.T, recorded bool, feeds, stops int) (fed, stopped bool) {
	hist := h.newHistory()
	feeding, stopping := hist.ins[0], hist.ins[1]
	hist.offer(1, 500)
	hist.offer(2, 500)
	// The first payout waits for the feeder, and the stream is empty.
	first := payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: hist.promotion.ID, Target: 1}, SummaryID: 9, Payload: hist.offers[0].payload}
	require.NoError(t, feeding.ledger.Accept(t.Context(), []payouts.Record{first}, ledger.AcceptOptions{})[0].Err)
	require.NoError(t, feeding.ledger.NotEnqueued(t.Context(), []payouts.Key{first.Key})[0])
	require.NoError(t, feeding.manager.Ensure(t.Context(), hist.promotion.StreamID()))
	hist.run(stopping, func(ctx context.Context) { // it is seen idle, too early for a deletion
		require.False(t, stopping.manager.Decommission(ctx, hist.promotion.StreamID()))
	})
	if recorded {
		_, err := feeding.ledger.RecordIncarnation(t.Context(), hist.promotion, hist.token())
		require.NoError(t, err)
	}

	step := func(a *actor, n int) {
		for ; n > 0 && !a.ended; n-- {
			hist.step(a, move{})
		}
	}
	const toItsEnd = 1000
	feed := hist.start(feeding, "feed", hist.feed(feeding))
	step(feed, feeds)
	fed = feed.ended
	stop := hist.start(stopping, "idle stop", hist.idleStop(stopping))
	step(stop, stops)
	stopped = stop.ended
	if feeds%2 == 0 {
		hist.run(stopping, hist.accept(stopping, hist.offers[1]))
	}
	step(feed, toItsEnd)
	step(stop, toItsEnd)
	hist.run(stopping, hist.accept(stopping, hist.offers[1]))
	for range 2 {
		hist.pass(2 * modelGrace)
		hist.run(feeding, hist.feed(feeding))
	}
	require.Empty(t, hist.faults)
	require.Zero(t, counted(t, h, "streams_lost_total"), "a round of %d steps, then an idle stop of %d (recorded before: %t):\n%s",
		feeds, stops, recorded, strings.Join(hist.log, "\n"))
	return fed, stopped
}

// The next feeder does not wait for the lease of one that has stopped.
func TestAStoppedFeederLeavesNoLease(t *testing.T) {
	t.Parallel()
	h := embeddedModelEnv(t)
	hist := h.newHistory()
	f := hist.ins[0].feeder
	require.NoError(t, f.Start(t.Context()))
	mine, err := h.ledgers[0].LeaseFeeder(t.Context(), hist.promotion, time.Hour)
	require.NoError(t, err)
	require.True(t, mine)
	require.NoError(t, f.Stop(t.Context()))
	require.NoError(t, f.Stop(t.Context()), "again")
	mine, err = h.ledgers[1].LeaseFeeder(t.Context(), hist.promotion, time.Hour)
	require.NoError(t, err)
	require.True(t, mine)
}

// counted returns a counter of the feeder for POINT. A label is the one in addition to the type.
func counted(t *testing.T, h *modelEnv, name string, label ...string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(h.feederMetrics.Collectors()...)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "millrace_promotion_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			values := map[string]bool{}
			for _, l := range m.GetLabel() {
				values[l.GetValue()] = true
			}
			if values["POINT"] && (len(label) == 0 || values[label[0]]) {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no series of %s", name)
	return 0
}
