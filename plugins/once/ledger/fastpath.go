package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Most effects are begun once and then done. PostgreSQL stores these two steps of a whole batch without reading its
// effects first: docs/decisions/0037-fast-path.md. What the steps write comes from rules.Policy, which is
// asked about an effect as it must be; a statement leaves out each effect that is not so. What it leaves out is read
// under a lock and decided by its row. SQLite leaves out everything.

// fastBegin is what the first begin of an effect sets. Its times are those of the begin and the end of the lease.
type fastBegin struct {
	epoch    int64
	attempts int
	lease    time.Duration
	by       string
	// after: an effect that was accepted earlier may have been called for in a time that the ledger has lost.
	after time.Time
}

// fastBegin asks the policy about an effect that has only been accepted. ok is false if its begin is no send, or
// sets anything else than an fastBegin has.
func (k *kind) fastBegin(now time.Time) (b fastBegin, ok bool) {
	p := k.policy()
	for _, l := range p.Lost {
		if l.Until.After(b.after) {
			b.after = l.Until
		}
	}
	accepted := now
	if b.after.After(accepted) {
		accepted = b.after
	}
	next, eff, d := p.Apply(fresh(accepted), beginEvent(now, rules.GroupRunning))
	b.epoch, b.attempts, b.lease, b.by = next.Epoch, next.Attempts, next.LeaseUntil.Sub(now), next.AttemptBy
	return b, d.Next == rules.Send && eff == (rules.Writes{}) && stored(next) == b.row(accepted, now)
}

// fresh is the row of an effect that was accepted and never begun.
func fresh(accepted time.Time) rules.Row {
	return rules.Row{State: rules.Pending, AcceptedAt: accepted, Queue: rules.QueueRetry}
}

func beginEvent(now time.Time, group rules.GroupState) rules.Event {
	return rules.Event{Kind: rules.EventBegin, Now: now, Group: group, SameRequest: true}
}

// row is what the table has after the begin.
func (b fastBegin) row(accepted, now time.Time) rules.Row {
	return rules.Row{State: rules.Sending, Epoch: b.epoch, Attempts: b.attempts, AcceptedAt: accepted, LeaseUntil: now.Add(b.lease),
		FirstSentAt: now, KeyFirstUsedAt: now, AttemptStartedAt: now, AttemptBy: b.by}
}

// fastEnds returns the first answer of each effect that settles a first send as done. items are sorted by key.
func fastEnds(items []*settleItem) (ends []*settleItem) {
	for n, item := range items {
		if (n == 0 || items[n-1].key != item.key) && item.takesFastPath() {
			ends = append(ends, item)
		}
	}
	return ends
}

// takesFastPath asks the policy about an effect whose first send is under way.
func (item *settleItem) takesFastPath() bool {
	began, now := time.Unix(0, 0), time.Unix(1, 0)
	row := fastBegin{epoch: item.end.Epoch, attempts: 1, lease: time.Hour, by: "x"}.row(began, began)
	next, eff, d := item.kind.policy().Apply(row, rules.Event{Kind: rules.EventSettle, Now: now, Result: item.end.CallResult})
	want := row
	want.State, want.SettledAt, want.LeaseUntil, want.Receipt = rules.Success, now, time.Time{}, item.end.Receipt
	return stored(next) == want && d == (rules.Decision{Next: rules.Ack}) && eff.Settled && !keeps(eff.Attempt)
}

// keeps reports whether an ended call has a row of its own. The row of the effect has a first call that ended done.
func keeps(a *rules.Attempt) bool {
	return a != nil && (a.Late || a.Epoch > 1 || a.Outcome != rules.Done)
}

// settleFast settles what takes the fast path, and returns the other items.
func (l *Ledger) settleFast(ctx context.Context, items []*settleItem, wait time.Duration) (others []*settleItem, err error) {
	items = slices.DeleteFunc(slices.Clone(items), func(i *settleItem) bool { return i.stored })
	ends := fastEnds(items)
	if len(ends) == 0 {
		return items, nil
	}
	err = l.repeat(ctx, func() error {
		settled, err := l.store.settleFast(ctx, ends, wait)
		if err != nil {
			return err
		}
		for i, end := range ends {
			if settled[i] {
				end.stored = true
				*end.result = SettledResult{Settled: Settled{State: rules.Success}}
			}
		}
		return nil
	})
	return slices.DeleteFunc(items, func(i *settleItem) bool { return i.stored }), err
}
