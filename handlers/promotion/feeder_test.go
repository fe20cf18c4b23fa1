package promotion

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/streams"
)

// What waits in a stream for long is not lost: it is fed again only when the stream is drained.
func TestALostTailIsFedOnlyWhenTheStreamIsDrained(t *testing.T) {
	t.Parallel()
	h := embeddedModelHome(t)
	h.config.Stream.MaxLen = 100
	w := h.world()
	in := w.ins[0]
	for target := range int64(3) {
		w.offer(target+1, 500)
		w.run(in, w.accept(in, w.offers[target]))
	}
	entries := func() int64 { return w.watch.XLen(t.Context(), w.stream).Val() }
	fed := func() float64 { return testutil.ToFloat64(h.metrics.fed.WithLabelValues("POINT", fedLostTail)) }
	require.EqualValues(t, 3, entries())
	w.pass(2 * modelGrace)
	w.run(in, w.feed(in))
	require.Zero(t, fed())
	require.EqualValues(t, 3, entries())

	for _, e := range w.watch.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: w.group, Consumer: "lost", Streams: []string{w.stream, ">"}, Block: -1}).Val()[0].Messages {
		require.NoError(t, w.watch.XAck(t.Context(), w.stream, w.group, e.ID).Err())
	}
	w.run(in, w.feed(in))
	require.Positive(t, fed())
	require.Empty(t, w.faults)
}

// A stream that is cleaned up in order is not lost, although payouts are unsettled and the feeder sees it before its deletion.
func TestACleanUpIsNoLoss(t *testing.T) {
	t.Parallel()
	h := embeddedModelHome(t)
	w := h.world()
	in := w.ins[0]
	w.offer(1, 500)
	w.run(in, w.accept(in, w.offers[0]))
	recorded := func() string {
		token, err := in.ledger.Incarnation(t.Context(), w.promotion)
		require.NoError(t, err)
		return token
	}
	lost := func() float64 { return testutil.ToFloat64(h.metrics.lost.WithLabelValues("POINT")) }

	require.NoError(t, in.ledger.Deactivate(t.Context(), w.promotion))
	w.run(in, w.feed(in))
	require.NotEmpty(t, w.token())
	require.Empty(t, recorded(), "the deletion comes next")
	require.NoError(t, w.watch.Del(t.Context(), w.stream, streams.MetaKey(w.stream)).Err())
	w.run(in, w.feed(in))
	require.Zero(t, lost())

	require.NoError(t, in.ledger.Activate(t.Context(), w.promotion, 0))
	require.NoError(t, in.manager.Ensure(t.Context(), w.promotion.ID))
	require.NoError(t, in.ledger.Deactivate(t.Context(), w.promotion))
	require.NoError(t, in.ledger.Activate(t.Context(), w.promotion, 0), "put back: it was not drained")
	w.run(in, w.feed(in))
	require.Equal(t, w.token(), recorded())
	require.NoError(t, w.watch.Del(t.Context(), w.stream, streams.MetaKey(w.stream)).Err())
	w.run(in, w.feed(in))
	require.EqualValues(t, 1, lost())
}

// The next feeder does not wait for the lease of one that has stopped.
func TestAStoppedFeederLeavesNoLease(t *testing.T) {
	t.Parallel()
	h := embeddedModelHome(t)
	w := h.world()
	f := w.ins[0].feeder
	require.NoError(t, f.Start(t.Context()))
	mine, err := h.ledgers[0].LeaseFeeder(t.Context(), w.promotion, time.Hour)
	require.NoError(t, err)
	require.True(t, mine)
	require.NoError(t, f.Stop(t.Context()))
	require.NoError(t, f.Stop(t.Context()), "again")
	mine, err = h.ledgers[1].LeaseFeeder(t.Context(), w.promotion, time.Hour)
	require.NoError(t, err)
	require.True(t, mine)
}

// A loop that does not end keeps no stop longer than its context.
func TestStopsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	f, r := &feeder{end: func() {}}, &resultRelay{end: func() {}}
	for _, s := range []struct {
		service pipeline.Service
		work    *sync.WaitGroup
	}{{f, &f.done}, {r, &r.done}} {
		release := make(chan struct{})
		s.work.Go(func() { <-release })
		stopped := make(chan error, 1)
		go func() { stopped <- s.service.Stop(over) }()
		select {
		case err := <-stopped:
			require.ErrorIs(t, err, context.Canceled)
		case <-time.After(30 * time.Second):
			t.Error("the stop waits for the loop")
		}
		close(release)
		s.work.Wait()
	}
}

// A promotion that can't be fed is logged once a minute and class, with the number of failures that were not logged.
func TestAFailureOfTheFeederIsLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := newFeeder(&engine{}, nil, slog.New(slog.NewTextHandler(&out, nil)))
		for range 121 { // rounds
			for id := range int64(2) {
				f.failed(ledger.Promotion{Type: "POINT", ID: id}, errors.New("no room"))
			}
			f.logNotFed(t.Context(), f.notFed.Due())
			time.Sleep(time.Second)
		}
		require.Equal(t, 2*3, strings.Count(out.String(), "promotion not fed"))
		require.Equal(t, 2*2, strings.Count(out.String(), "suppressed=59"))
	})
}
