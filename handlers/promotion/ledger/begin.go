package ledger

import (
	"context"
	"time"
)

// Begun is what a worker does with the entry in its hand. Next is Send, Ask, Ack, Retry, Conflict or Unannounced.
type Begun struct {
	Next Next
	// Epoch goes back with Settle. Set with Send and Ask.
	Epoch int64
	// Attempt is the number of the send, from 1; Retries of them are retries.
	Attempt int
	// Request is what is sent, byte for byte as it was accepted. Payload is the record as it came.
	Request []byte
	Payload []byte
	// Lease is how long the call may take, counted from before Begin was called: the worker reads its
	// monotonic clock first, starts the call only while the lease lasts, and ends it with the lease.
	Lease time.Duration
	// SinceLastCall is how long ago the call before this one was begun; 0 for the first one.
	SinceLastCall time.Duration
	// RetryIn is when a retry record is due. Set with Retry.
	RetryIn time.Duration
	State   State
	// Why is for logs: settled, leased, not_due, paused, cancelled, exhausted, conflict or unannounced; empty with Send and Ask.
	Why string
}

// Begin takes a payout for one call of the Money API, or says why not. Whoever is answered Send or Ask
// calls Settle with the epoch, whatever happens. An entry whose request is not the stored one (Options.SameRequest) is
// answered with Conflict and begins nothing. An entry for which there is no row is answered with Unannounced: only Accept
// and Announce make rows, and the entry's dead letter is in the outbox. With Options.AcceptUnannounced it is accepted instead.
//
// When ctx ends while the begin is under way and the payout was taken, the ledger gives it back by itself.
// After an error Begin may be repeated; a lease that was taken unnoticed then answers Retry.
func (l *Ledger) Begin(ctx context.Context, r Record) (Begun, error) {
	if err := r.validate(); err != nil {
		return Begun{}, err
	}
	return l.begins.do(ctx, &r)
}

func (l *Ledger) beginBatch(ctx context.Context, batch []*call[*Record, Begun]) error {
	w := wanted(batch)
	w.bodies, w.knownOnly = true, !l.opts.AcceptUnannounced
	return l.transact(ctx, w, func(ctx context.Context, u unit, s *snapshot, c *changes) error {
		book := l.newBook(s, c)
		if l.opts.AcceptUnannounced {
			if err := l.acceptUnknown(ctx, u, s, batch); err != nil {
				return err
			}
		}
		for _, k := range batch {
			r := k.req
			row := s.rows[r.Key]
			if row == nil {
				c.outbox = append(c.outbox, unannouncedLine(r, s.now))
				k.res = Begun{Next: Unannounced, Why: ClassUnannounced}
				continue
			}
			lastCall := row.AttemptStartedAt
			next, eff, d := l.policy.apply(row.Row, event{kind: evBegin, now: s.now, promotion: s.promotions[r.Of()],
				same: l.opts.SameRequest(row.Type, row.sent(), r.request())})
			row.Row = next
			book.add(row, eff, r, r.Handler)
			k.res = Begun{Next: d.next, RetryIn: d.retryIn, State: row.State, Why: d.why}
			if d.next == Send || d.next == Ask {
				k.res.Epoch, k.res.Attempt, k.res.Lease = row.Epoch, row.Attempts, l.policy.lease
				k.res.Request, k.res.Payload = row.sent(), row.payload
				if !lastCall.IsZero() {
					k.res.SinceLastCall = s.now.Sub(lastCall)
				}
			}
		}
		return book.close(ctx, u)
	})
}

// acceptUnknown makes rows for entries that no accepted record announced (Options.AcceptUnannounced).
func (l *Ledger) acceptUnknown(ctx context.Context, u unit, s *snapshot, batch []*call[*Record, Begun]) error {
	missing := map[Key]bool{}
	var fresh []*stored
	for _, k := range batch {
		r := k.req
		if s.rows[r.Key] != nil || missing[r.Key] {
			continue
		}
		missing[r.Key] = true
		row := freshRow(r)
		// Accepted as if the promotion ran: the begin that follows in this transaction settles the rest.
		row.Row, _, _ = l.policy.apply(row.Row, event{kind: evAccept, now: s.now, promotion: PromotionRunning})
		fresh = append(fresh, row)
	}
	if len(fresh) == 0 {
		return nil
	}
	sortInserts(fresh)
	if err := u.insert(ctx, fresh); err != nil {
		return err
	}
	again := want{bodies: true, lock: true}
	for _, row := range fresh {
		if row.ID == 0 {
			again.keys = append(again.keys, row.Key)
			continue
		}
		row.was = row.Row
		s.rows[row.Key] = row
	}
	if len(again.keys) == 0 {
		return nil
	}
	return u.more(ctx, again, s)
}

// orphaned gives a payout back whose worker went away while it was begun.
func (l *Ledger) orphaned(k *call[*Record, Begun]) {
	if k.err != nil || (k.res.Next != Send && k.res.Next != Ask) {
		return
	}
	key, epoch := k.req.Key, k.res.Epoch
	l.orphans.Go(func() {
		ctx, cancel := context.WithTimeout(l.life, flushTimeout)
		defer cancel()
		_, err := l.settles.do(ctx, &Result{Key: key, Epoch: epoch, Outcome: Interrupted, Class: "caller_gone"})
		if err != nil {
			l.log.Warn("payout not given back; its lease runs out", "payout", key.String(), "error", err)
		}
	})
}
