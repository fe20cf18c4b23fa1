package promotion

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/poll"
)

// slotTest is more workers than the client of a slow Money API has slots.
type slotTest struct {
	hist   *history
	client *money.Client
	called chan struct{} // one element per call that has reached the API
	answer chan struct{} // one element lets one call be paid
	paid   chan error    // what each pay returned
}

const testSlots, testWorkers = 3, 20

// clientGauge returns the gauge millrace_money_NAME of the client.
func clientGauge(t testing.TB, client *money.Client, name string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(client.Collectors()...)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "millrace_money_"+name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no series of %s", name)
	return 0
}

// newSlotTest pays each payout by pay.
func newSlotTest(t *testing.T, pay func(*payout.Processor, rules.Record) error) *slotTest {
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
	cfg := money.DefaultConfig()
	cfg.URL, cfg.CallTimeout, cfg.ConnectTimeout, cfg.Concurrency = api.URL, time.Minute, time.Minute, testSlots
	var err error
	st.client, err = money.New(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.client.Close()) })
	in := st.hist.ins[0]
	in.api = st.client
	for target := range int64(testWorkers) {
		payload, err := pointType().Encode(st.hist.promotion.ID, 9, target+1, "500")
		require.NoError(t, err)
		rec := rules.Record{Key: st.key(target + 1), SummaryID: 9, Payload: payload}
		require.NoError(t, in.ledger.Accept(t.Context(), []rules.Record{rec}, ledger.AcceptOptions{})[0].Err)
		go func() { st.paid <- pay(in.proc, rec) }()
	}
	for range testSlots {
		<-st.called
	}
	return st
}

func (st *slotTest) key(target int64) rules.Key {
	return rules.Key{Type: st.hist.promotion.Type, Promotion: st.hist.promotion.ID, Target: target}
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

// With more workers than slots, a payout is started only when its call has a slot.
func TestABeginHasASlot(t *testing.T) {
	t.Parallel()
	st := newSlotTest(t, func(p *payout.Processor, rec rules.Record) error { return p.Pay(t.Context(), rec) })
	for left := testWorkers; left > 0; left-- {
		require.Equal(t, min(left, testSlots), st.count(t, rules.Sending), "%d are not paid", left)
		require.EqualValues(t, min(left, testSlots), clientGauge(t, st.client, "in_flight"))
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

// At a stop, payouts that wait for a slot are not started. Those that have one are paid.
func TestADrainEndsTheWaitForASlot(t *testing.T) {
	t.Parallel()
	st := newSlotTest(t, func(p *payout.Processor, rec rules.Record) error { return p.Pay(t.Context(), rec) })
	run := newResources(st.hist.ins[0].config)
	run.client.Store(st.client)
	var service pipeline.Service = run.moneyService()
	service.(pipeline.Phased).Draining()
	for range testWorkers - testSlots {
		require.ErrorIs(t, <-st.paid, money.ErrStopping)
	}
	for range testSlots {
		st.answer <- struct{}{}
		require.NoError(t, <-st.paid)
	}
	require.Equal(t, testSlots, st.count(t, rules.Success))
	require.Equal(t, testWorkers-testSlots, st.count(t, rules.Pending))
	require.Zero(t, clientGauge(t, st.client, "in_flight"))
}

// An entry without a slot becomes no retry record, so that a busy Money API does not enqueue it
// twice. A retry record is delivered again.
func TestAnEntryWithoutASlotIsLeftToTheFeeder(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]string{"stream entry": poll.Kind, "retry record": "kafka"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newSlotTest(t, func(p *payout.Processor, rec rules.Record) error {
				msg := message.NewMessage("", rec.Payload)
				msg.SetContext(pipeline.WithOrigin(t.Context(), pipeline.Origin{Kind: kind, Source: p.Streams.Kind().Stream(rec.Promotion)}))
				_, err := p.PayFrom("route")(msg)
				return err
			})
			st.client.Drain()
			for range testWorkers - testSlots {
				if err := <-st.paid; kind == poll.Kind {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, money.ErrStopping)
				}
			}
			fed, err := st.hist.ins[0].ledger.FeedUnqueued(t.Context(), st.hist.promotion, testWorkers)
			require.NoError(t, err)
			if kind == poll.Kind {
				require.Len(t, fed, testWorkers-testSlots)
			} else {
				require.Empty(t, fed)
			}
			for range testSlots {
				st.answer <- struct{}{}
				require.NoError(t, <-st.paid)
			}
		})
	}
}
