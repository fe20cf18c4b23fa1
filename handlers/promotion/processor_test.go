package promotion

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// callAPI is a Money API that pays, and runs a function with the context of each call.
type callAPI struct {
	money.API
	during func(ctx context.Context)
}

func (a callAPI) Slot(context.Context) (release func(), err error) { return func() {}, nil }

func (a callAPI) Charge(ctx context.Context, _ money.Charge) money.Answer {
	a.during(ctx)
	if ctx.Err() != nil {
		return money.Answer{}
	}
	return money.Answer{Class: money.Paid, TransactionKey: "T"}
}

// payOne pays a payout as the stream route does, with the context of its message, and returns its
// state.
func payOne(ctx context.Context, t *testing.T, hist *history, during func(context.Context)) rules.State {
	t.Helper()
	in := hist.ins[0]
	in.api = callAPI{during: during}
	msg := message.NewMessage("", hist.offers[0].payload)
	msg.SetContext(ctx)
	_, err := in.proc.PayFrom(in.proc.StreamRoute())(msg)
	require.NoError(t, err)
	x, err := in.ledger.Explain(t.Context(), payouts.Key{Type: hist.promotion.Type, Promotion: hist.promotion.ID, Target: 1})
	require.NoError(t, err)
	return x.State
}

func newOffer(t *testing.T) *history {
	hist := embeddedModelEnv(t).newHistory()
	hist.offer(1, 500)
	hist.run(hist.ins[0], hist.accept(hist.ins[0], hist.offers[0]))
	return hist
}

// A drain or a handler's time limit ends the message's context. A call in flight continues, and its
// answer is stored.
func TestACancelledMessageDoesNotEndItsCall(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	state := payOne(ctx, t, newOffer(t), func(context.Context) { cancel() })
	require.Equal(t, rules.Success, state)
}

// An answer that the ledger refuses to store for a moment is not lost: it is stored later.
func TestAnAnswerIsStoredLater(t *testing.T) {
	t.Parallel()
	hist := newOffer(t)
	hist.ins[0].proc.SettleTries = 0
	state := payOne(t.Context(), t, hist, func(context.Context) {
		_, err := hist.db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON attempts WHEN unixepoch('subsec') < ` +
			strconv.FormatFloat(float64(time.Now().Add(200*time.Millisecond).UnixMilli())/1000, 'f', 3, 64) +
			` BEGIN SELECT abs(-9223372036854775808); END`) // an integer overflow
		require.NoError(t, err)
	})
	require.Equal(t, rules.Success, state)
}

// waitedFor reports that the end of the context is waited for.
type waitedFor struct {
	context.Context
	once *sync.Once
	told chan struct{}
}

func (c waitedFor) Done() <-chan struct{} {
	c.once.Do(func() { close(c.told) })
	return c.Context.Done()
}

// However long the begin takes, the call's deadline is not later than the lease that the ledger has
// given.
func TestTheLeaseCountsFromBeforeTheBegin(t *testing.T) {
	t.Parallel()
	hist := newOffer(t)
	lock, err := hist.db.Conn(t.Context())
	require.NoError(t, err)
	defer func() { _ = lock.Close() }()
	_, err = lock.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)
	ctx := waitedFor{t.Context(), new(sync.Once), make(chan struct{})}
	released := make(chan time.Time, 1)
	go func() {
		<-ctx.told // the begin is under way, and waits for the lock
		released <- time.Now()
		_, _ = lock.ExecContext(context.Background(), "ROLLBACK")
	}()
	var deadline time.Time
	require.Equal(t, rules.Success, payOne(ctx, t, hist, func(ctx context.Context) { deadline, _ = ctx.Deadline() }))
	require.False(t, deadline.After((<-released).Add(modelLease)))
}
