package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// BeginResult is the result of Begin. Next is Send, Lookup, Ack, Retry, Conflict or Unannounced.
type BeginResult struct {
	Next rules.Next
	// Epoch is passed to Settle. Set with Send and Lookup.
	Epoch int64
	// Attempt is the number of the send, from 1.
	Attempt int
	// Request is sent, byte for byte as it was accepted.
	Request []byte
	// Lease is the time limit of the call, counted from before Begin. The worker reads its
	// monotonic clock first, starts the call only while the lease lasts, and ends it with the
	// lease.
	Lease time.Duration
	// SinceLastCall is the time since the previous call started; 0 for the first one.
	SinceLastCall time.Duration
	// RetryIn is the delay of the retry record. Set with Retry.
	RetryIn time.Duration
	State   rules.State
	// Why is for logs: settled, leased, not_due, paused, cancelled, exhausted, conflict or
	// unannounced. Empty with Send and Lookup.
	Why string
}

// Begin takes the lease of a payout for one call of the Money API, or returns why not. After Send
// or Lookup the caller must call Settle with the epoch, also when ctx has ended meanwhile. An entry
// with another request than the stored one (Options.SameRequest) gets Conflict. An entry without a
// row gets Unannounced, and its dead letter is in the outbox: only Accept and Announce create rows.
// With Options.AcceptUnannounced it is accepted instead.
//
// If ctx ends, a queued begin is removed, and a running one is waited for. After an
// error Begin may be repeated; its own earlier lease then returns Retry.
func (l *Ledger) Begin(ctx context.Context, r payouts.Record) (BeginResult, error) {
	if err := r.Validate(); err != nil {
		return BeginResult{}, err
	}
	return l.begins.one(ctx, r.Key, &r)
}

func (l *Ledger) beginBatch(ctx context.Context, batch []*batchItem[*payouts.Record, BeginResult]) error {
	w := readRequestOf(batch)
	w.messages, w.knownOnly = true, !l.opts.AcceptUnannounced
	return l.transact(ctx, w, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
		effects := l.newEffectSet(read, writes)
		if l.opts.AcceptUnannounced {
			if err := l.acceptUnannounced(ctx, tx, read, batch); err != nil {
				return err
			}
		}
		for _, k := range batch {
			r := k.req
			row := read.rows[r.Key]
			if row == nil {
				writes.outbox = append(writes.outbox, unannouncedDeadLetter(r, read.now))
				k.res = BeginResult{Next: rules.Unannounced, Why: rules.ClassUnannounced}
				continue
			}
			lastCall := row.AttemptStartedAt
			next, eff, d := row.Row.Apply(l.policy, rules.Event{Kind: rules.EventBegin, Now: read.now, Group: read.promotions[r.OfPromotion()],
				SameRequest: l.opts.SameRequest(row.Type, row.requestToSend(), r.RequestToSend())})
			row.Row = next
			effects.add(row, eff, r, r.Route)
			k.res = BeginResult{Next: d.Next, RetryIn: d.RetryIn, State: row.State, Why: d.Reason}
			if d.Next == rules.Send || d.Next == rules.Lookup {
				k.res.Epoch, k.res.Attempt, k.res.Lease = row.Epoch, row.Attempts, l.policy.Lease
				k.res.Request = row.requestToSend()
				if !lastCall.IsZero() {
					k.res.SinceLastCall = read.now.Sub(lastCall)
				}
			}
		}
		return effects.writeTo(ctx, tx)
	})
}

// acceptUnannounced inserts rows for entries without one (Options.AcceptUnannounced).
func (l *Ledger) acceptUnannounced(ctx context.Context, tx transaction, read *readResult, batch []*batchItem[*payouts.Record, BeginResult]) error {
	missing := map[payouts.Key]bool{}
	var fresh []*storedRow
	for _, k := range batch {
		r := k.req
		if read.rows[r.Key] != nil || missing[r.Key] {
			continue
		}
		missing[r.Key] = true
		row := newRow(r)
		// The begin in this transaction applies the state of the promotion.
		row.Row, _, _ = row.Row.Apply(l.policy, rules.Event{Kind: rules.EventAccept, Now: read.now, Group: rules.GroupRunning})
		fresh = append(fresh, row)
	}
	if len(fresh) == 0 {
		return nil
	}
	sortInserts(fresh)
	if err := tx.insert(ctx, fresh); err != nil {
		return err
	}
	again := readRequest{messages: true, lock: true}
	for _, row := range fresh {
		if row.ID == 0 {
			again.keys = append(again.keys, row.Key)
			continue
		}
		row.before = row.Row
		read.rows[row.Key] = row
	}
	if len(again.keys) == 0 {
		return nil
	}
	return tx.readMore(ctx, again, read)
}
