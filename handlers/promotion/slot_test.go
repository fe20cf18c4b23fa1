package promotion

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/slots"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// slotTest is more workers than payouts that may be started, which are more than the client of a
// slow Money API has slots.
type slotTest struct {
	hist   *history
	client *money.Client
	called chan struct{} // one element per call that has reached the API
	answer chan struct{} // one element lets one call be paid
	paid   chan error    // what each pay returned
}

const testSlots, testBegins, testWorkers = 3, 8, 20

// clientGauge returns the gauge millrace_once_http_NAME of the client.
func clientGauge(t testing.TB, client *money.Client, name string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(client.Collectors()...)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "millrace_once_http_"+name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no series of %s", name)
	return 0
}

// newSlotTest pays each payout by pay.
func newSlotTest(t *testing.T, pay func(*payout.Processor, payouts.Record) error) *slotTest {
	return newSlotTestOf(t, testSlots, testBegins, pay)
}

// newSlotTestOf waits for the first calls, and for the number of started payouts.
func newSlotTestOf(t *testing.T, calls, started int, pay func(*payout.Processor, payouts.Record) error) *slotTest {
	st := &slotTest{hist: embeddedModelEnv(t).newHistory(), called: make(chan struct{}, testWorkers), answer: make(chan struct{}), paid: make(chan error, testWorkers)}
	over := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		st.called <- struct{}{}
		select {
		case <-st.answer:
			_, _ = rw.Write([]byte(`{"transactionKey":"tx"}`))
		case <-over:
		}
	}))
	t.Cleanup(api.Close)
	t.Cleanup(func() { close(over) }) // a test that has failed leaves no call behind
	cfg := oncehttp.DefaultConfig()
	cfg.URL, cfg.CallTimeout, cfg.ConnectTimeout, cfg.Concurrency = api.URL, time.Minute, time.Minute, testSlots
	var err error
	st.client, err = money.New(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.client.Close()) })
	in := st.hist.ins[0]
	in.api, in.begins = st.client, slots.New(testBegins)
	for target := range int64(testWorkers) {
		payload, err := pointType().Encode(st.hist.promotion.ID, 9, target+1, "500")
		require.NoError(t, err)
		rec := payouts.Record{Key: st.key(target + 1), SummaryID: 9, Payload: payload}
		require.NoError(t, in.ledger.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
		go func() { st.paid <- pay(in.proc, rec) }()
	}
	for range calls {
		<-st.called
	}
	st.await(t, rules.Sending, started)
	return st
}

// await waits until want payouts are in a state.
func (st *slotTest) await(t *testing.T, s rules.State, want int) {
	t.Helper()
	require.Eventually(t, func() bool { return st.count(t, s) == want }, 2*time.Minute, time.Millisecond, "%d payouts %s", want, s)
}

func (st *slotTest) key(target int64) payouts.Key {
	return payouts.Key{Type: st.hist.promotion.Type, Promotion: st.hist.promotion.ID, Target: target}
}

// count returns how many payouts are in a state.
func (st *slotTest) count(t *testing.T, s rules.State) (n int) {
	t.Helper()
	for target := range int64(testWorkers) {
		x, err := st.hist.ins[0].ledger.Explain(t.Context(), st.key(target+1))
		require.NoError(t, err)
		if x.State == s {
			n++
		}
	}
	return n
}

// Payouts are started before there is a slot for their calls, but not all of them.
func TestPayoutsAreStartedAheadOfTheirCalls(t *testing.T) {
	t.Parallel()
	st := newSlotTest(t, func(p *payout.Processor, rec payouts.Record) error { return p.Pay(t.Context(), rec) })
	for left := testWorkers; left > 0; left-- {
		st.await(t, rules.Sending, min(left, testBegins))
		require.EqualValues(t, min(left, testSlots), clientGauge(t, st.client, "in_flight"))
		require.Empty(t, st.called, "a call without a slot")
		st.answer <- struct{}{}
		require.NoError(t, <-st.paid)
		if left > testSlots {
			<-st.called
		}
	}
	require.Zero(t, clientGauge(t, st.client, "in_flight"))
	for target := range int64(testWorkers) {
		x, err := st.hist.ins[0].ledger.Explain(t.Context(), st.key(target+1))
		require.NoError(t, err)
		require.Equal(t, rules.Success, x.State)
		require.Len(t, x.Calls, 1)
		require.Zero(t, x.Interruptions)
	}
}

// A stream starts and calls as many payouts as it has slots for, also when the process has more.
func TestAStreamHasFewerSlotsThanTheProcess(t *testing.T) {
	t.Parallel()
	const starts = 5 // of testBegins
	ofStream, startsOfStream := slots.New(1), slots.New(starts)
	st := newSlotTestOf(t, 1, starts, func(p *payout.Processor, rec payouts.Record) error {
		return p.Pay(slots.WithSource(t.Context(), slots.OfSource{Calls: ofStream, Starts: startsOfStream}), rec)
	})
	require.EqualValues(t, 1, clientGauge(t, st.client, "in_flight"), "the process has two more slots")
	for left := testWorkers; left > 0; left-- {
		st.await(t, rules.Sending, min(left, starts))
		require.Empty(t, st.called, "a call without a slot of the stream")
		st.answer <- struct{}{}
		require.NoError(t, <-st.paid)
		if left > 1 {
			<-st.called
		}
	}
	require.Zero(t, ofStream.Taken())
	require.Zero(t, startsOfStream.Taken())
}

// noSlots is a Money API whose slots are taken.
type noSlots struct{ callAPI }

func (noSlots) Slot(ctx context.Context) (release func(), err error) {
	return nil, slots.New(0).Acquire(ctx)
}

// A payout whose slot comes too late for its lease is not called. It is due again at once, and has
// spent no attempt.
func TestALateSlotInterruptsAPayout(t *testing.T) {
	t.Parallel()
	calls := callAPI{during: func(context.Context) { t.Error("called without a slot") }}
	for name, c := range map[string]struct {
		api   money.API
		slots int // of the stream
	}{
		"of the stream":  {calls, 0},
		"of the process": {noSlots{calls}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hist := newOffer(t)
			in, ofStream := hist.ins[0], slots.New(c.slots)
			in.api, in.proc.CallTimeout = c.api, modelLease-50*time.Millisecond
			key := payouts.Key{Type: hist.promotion.Type, Promotion: hist.promotion.ID, Target: 1}
			before := time.Now()
			err := in.proc.Pay(slots.WithSource(t.Context(), slots.OfSource{Calls: ofStream}), payouts.Record{Key: key, SummaryID: 9, Payload: hist.offers[0].payload})
			require.GreaterOrEqual(t, time.Since(before), 50*time.Millisecond)
			delay, again := pipeline.RetryDelay(err)
			require.True(t, again)
			require.Zero(t, delay)
			require.Zero(t, ofStream.Taken())
			x, err := in.ledger.Explain(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, rules.Errored, x.State)
			require.Equal(t, payouts.Interrupted, x.Calls[0].Outcome)
			require.Equal(t, 1, x.Interruptions)
			require.Zero(t, x.Attempts)
			require.Zero(t, x.Failures)
			require.True(t, x.KeyFirstUsedAt.IsZero(), "the key was not sent")
		})
	}
}

// At a stop, payouts that wait are not started. Started ones without a slot are not called. Those
// that have a slot are paid.
func TestADrainEndsTheWaitForASlot(t *testing.T) {
	t.Parallel()
	st := newSlotTest(t, func(p *payout.Processor, rec payouts.Record) error { return p.Pay(t.Context(), rec) })
	st.drain()
	interrupted := 0
	for range testWorkers - testSlots {
		err := <-st.paid
		if _, started := pipeline.RetryDelay(err); started {
			interrupted++
		} else {
			require.ErrorIs(t, err, slots.ErrNoMore)
		}
	}
	require.GreaterOrEqual(t, interrupted, testBegins-testSlots)
	for range testSlots {
		st.answer <- struct{}{}
		require.NoError(t, <-st.paid)
	}
	require.Equal(t, testSlots, st.count(t, rules.Success))
	require.Equal(t, interrupted, st.count(t, rules.Errored))
	require.Equal(t, testWorkers-testSlots-interrupted, st.count(t, rules.Pending))
	require.Positive(t, st.count(t, rules.Pending), "each could be started")
	require.Zero(t, clientGauge(t, st.client, "in_flight"))
}

// drain does what a stop of the process does.
func (st *slotTest) drain() {
	run := newResources(st.hist.ins[0].config)
	run.begins = st.hist.ins[0].begins
	run.client.Store(st.client)
	var service pipeline.Service = run.moneyService()
	service.(pipeline.Phased).Draining()
}

// An entry without a slot becomes no retry record, so that a busy Money API does not enqueue it
// twice. A retry record is delivered again.
func TestAnEntryWithoutASlotIsLeftToTheFeeder(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]string{"stream entry": poll.Kind, "retry record": "kafka"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newSlotTest(t, func(p *payout.Processor, rec payouts.Record) error {
				msg := message.NewMessage("", rec.Payload)
				msg.SetContext(pipeline.WithDelivery(t.Context(), pipeline.Delivery{Origin: pipeline.Origin{Kind: kind, Source: p.Streams.Kind().Stream(rec.Key.OfPromotion().StreamID())}}))
				_, err := p.PayFrom("route")(msg)
				return err
			})
			st.drain()
			interrupted := 0
			for range testWorkers - testSlots {
				err := <-st.paid
				if kind == poll.Kind {
					require.NoError(t, err)
				} else if _, started := pipeline.RetryDelay(err); started {
					interrupted++
				} else {
					require.ErrorIs(t, err, slots.ErrNoMore)
				}
			}
			fed, err := st.hist.ins[0].ledger.FeedUnqueued(t.Context(), st.hist.promotion, testWorkers)
			require.NoError(t, err)
			if kind == poll.Kind {
				require.Len(t, fed, testWorkers-testSlots, "started or not")
			} else {
				require.Empty(t, fed)
				require.GreaterOrEqual(t, interrupted, testBegins-testSlots)
			}
			for range testSlots {
				st.answer <- struct{}{}
				require.NoError(t, <-st.paid)
			}
		})
	}
}
