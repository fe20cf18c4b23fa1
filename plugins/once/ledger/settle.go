package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

type portableTime = portable.Time

// SettledResult is the result of Settle for one call.
type SettledResult struct {
	Settled
	// Err is about this call alone: it wraps ErrInvalid or ErrNotFound, or ErrUnavailable if another
	// transaction holds the effect. Then Settle may be repeated for the call.
	Err error
}

// Settle stores the ends of calls and returns one result per call, in their order. An answer for an
// earlier epoch than that of the effect changes nothing and is kept (Settled.Stale).
//
// The error is about the database. It wraps ErrUnavailable when Settle may be repeated, with the same
// epochs: the end of a call is stored once.
func (l *Ledger) Settle(ctx context.Context, ends []End) ([]SettledResult, error) {
	results := make([]SettledResult, len(ends))
	items := make([]*settleItem, 0, len(ends))
	for i := range ends {
		item := &settleItem{end: ends[i], result: &results[i]}
		e := &item.end
		e.Class, e.Answer, e.Receipt = clean(e.Class), clean(e.Answer), portable.Text(e.Receipt, maxReceiptBytes)
		var err error
		if item.kind, err = l.registered(e.Kind); err == nil {
			err = e.Validate()
		}
		if item.result.Err = err; err == nil {
			item.key = rowKey{item.kind.number, e.Group, e.ID}
			items = append(items, item)
		}
	}
	if len(items) == 0 {
		return results, nil
	}
	slices.SortStableFunc(items, func(a, b *settleItem) int { return compareKeys(a.key, b.key) })
	began := time.Now()
	err := l.briefly(ctx, "settle", func(ctx context.Context) error {
		return split(ctx, l, items, 0, l.settleTogether, func(item *settleItem, err error) {
			item.result.Err = l.wrap("settle "+item.end.Key.text(), err)
		})
	})
	l.opts.Metrics.batch(opSettle, len(items), time.Since(began))
	return results, err
}

type settleItem struct {
	end    End
	kind   *kind
	key    rowKey
	result *SettledResult
	stored bool // by settleFast
}

func (l *Ledger) settleTogether(ctx context.Context, items []*settleItem, wait time.Duration) error {
	items, err := l.settleFast(ctx, items, wait)
	if err != nil || len(items) == 0 {
		return err
	}
	w := readRequest{lock: lockWait, wait: wait, keys: slices.Compact(valuesOf(items, func(i *settleItem) rowKey { return i.key }))}
	return l.transact(ctx, w, func(_ context.Context, _ transaction, read *readResult, writes *writeSet) error {
		changes := l.newChanges(read)
		for _, item := range items {
			row := read.rows[item.key]
			if row == nil {
				item.result.Err = notFound(item.end.Key)
				continue
			}
			next, eff, d := item.kind.policy().Apply(row.Row, rules.Event{Kind: rules.EventSettle, Now: read.now, Result: item.end.CallResult})
			changes.apply(row, next, eff, false)
			if !d.Stale && !d.Repeated {
				row.status = item.end.Status
			}
			*item.result = SettledResult{Settled: Settled{State: next.State, Stale: d.Stale}}
			if !next.State.Settled() {
				item.result.DueIn = max(0, dueAt(next).Sub(read.now))
			}
		}
		changes.writeTo(writes)
		return nil
	})
}

// dueAt returns when an unsettled effect is due next.
func dueAt(r rules.Row) time.Time {
	if r.State == rules.Sending {
		return r.LeaseUntil
	}
	return r.NextAttemptAt
}

func notFound(k Key) error { return fmt.Errorf("once: ledger: effect %s: %w", k.text(), ErrNotFound) }
