package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// SettleResult is the result of Settle. Next is Ack or Retry.
type SettleResult struct {
	Next    rules.Next
	RetryIn time.Duration
	State   rules.State
	// Stale: a later begin has taken the payout. The answer was stored and changed nothing.
	Stale    bool
	Attempts int // sends that count
}

// Settle stores the end of a call. It may be repeated with the same epoch after an error: the
// repetition changes nothing and has the same result. Pass a context that outlives a shutdown.
func (l *Ledger) Settle(ctx context.Context, r payouts.CallResult) (SettleResult, error) {
	if err := r.Validate(); err != nil {
		return SettleResult{}, err
	}
	// A paid answer must be stored, whatever text it contains.
	r.Receipt, r.Class, r.Answer, r.Route = clean(r.Receipt), clean(r.Class), clean(r.Answer), clean(r.Route)
	return l.settles.one(ctx, r.Key, &r)
}

func (l *Ledger) settleBatch(ctx context.Context, batch []*batchItem[*payouts.CallResult, SettleResult]) error {
	w := readRequestOf(batch)
	w.promotions = nil
	return l.transact(ctx, w, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
		effects := l.newEffectSet(read, writes)
		for _, k := range batch {
			row := read.rows[k.req.Key]
			if k.err = nil; row == nil {
				k.err = notFound(k.req.Key)
				continue
			}
			next, eff, d := row.Row.Apply(l.policy, rules.Event{Kind: rules.EventSettle, Now: read.now, Result: k.req.CallResult})
			row.Row = next
			effects.add(row, eff, nil, k.req.Route)
			k.res = SettleResult{Next: d.Next, RetryIn: d.RetryIn, State: row.State, Stale: d.Stale, Attempts: row.Attempts}
		}
		return effects.writeTo(ctx, tx)
	})
}
