package ledger

import (
	"context"
	"slices"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// ordinaryStore carries out the ordinary begin and the ordinary settle of a whole batch in one
// statement, without reading the rows first: docs/decisions/0021-ordinary-payouts.md. Rows that it
// leaves out take the general path, over a transaction and rules.Policy. Keys are sorted and
// unique.
type ordinaryStore interface {
	// beginOrdinary begins the payouts whose first begin it is. It calls started with the position
	// of each.
	beginOrdinary(ctx context.Context, records []*payouts.Record, p rules.Policy, started func(i int)) error
	// settleOrdinary settles the payouts whose send of this epoch was paid. It calls settled with
	// the position of each.
	settleOrdinary(ctx context.Context, results []*payouts.CallResult, outcomeEvents bool, settled func(i int, row *storedRow)) error
}

// firstOfEachKey returns the first item of each key, in the order of CompareKeys. A later item is
// decided after it.
func firstOfEachKey[Q, R any](batch []*batchItem[Q, R]) []*batchItem[Q, R] {
	firsts := slices.Clone(batch)
	sorted.By(firsts, func(x, y *batchItem[Q, R]) int { return payouts.CompareKeys(x.key, y.key) })
	return slices.CompactFunc(firsts, func(x, y *batchItem[Q, R]) bool { return x.key == y.key })
}

func (l *Ledger) beginOrdinary(ctx context.Context, s ordinaryStore, batch []*batchItem[*payouts.Record, BeginResult]) error {
	batch = firstOfEachKey(batch)
	records := valuesOf(batch, func(k *batchItem[*payouts.Record, BeginResult]) *payouts.Record { return k.req })
	return s.beginOrdinary(ctx, records, l.policy, func(i int) {
		batch[i].ended = true
		batch[i].res = BeginResult{Next: rules.Send, Epoch: 1, Attempt: 1, Request: records[i].RequestToSend(), Lease: l.policy.Lease, State: rules.Sending}
	})
}

func (l *Ledger) settleOrdinary(ctx context.Context, s ordinaryStore, batch []*batchItem[*payouts.CallResult, SettleResult]) error {
	batch = slices.DeleteFunc(firstOfEachKey(batch), func(k *batchItem[*payouts.CallResult, SettleResult]) bool { return k.req.Outcome != rules.Done })
	if len(batch) == 0 {
		return nil
	}
	results := valuesOf(batch, func(k *batchItem[*payouts.CallResult, SettleResult]) *payouts.CallResult { return k.req })
	return s.settleOrdinary(ctx, results, l.opts.OutcomeEvents, func(i int, row *storedRow) {
		batch[i].ended = true
		batch[i].res = SettleResult{Next: rules.Ack, State: row.State, Attempts: row.Attempts}
	})
}
