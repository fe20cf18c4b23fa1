package ledger

import (
	"context"
	"time"
)

// Result is how a call ended.
type Result struct {
	Key            Key
	Epoch          int64 // of the Begun that allowed the call
	Outcome        Outcome
	Counted        bool          // a released call counts towards Config.MaxReleased: calls for other payouts are being answered
	TransactionKey string        // with Paid
	RetryAfter     time.Duration // the API asked for it; the delay is never shorter
	Class          string        // short snake_case class of the error
	Answer         string        // what the API said, for people; cut to 4 KiB
	Status         int           // HTTP status; 0 without one
	Handler        string        // route name, for a dead letter
}

// Settled is what a result made of the payout. Next is Ack or Retry.
type Settled struct {
	Next    Next
	RetryIn time.Duration
	State   State
	// Stale: somebody else has taken the payout over. The answer is kept as evidence and changed nothing.
	Stale    bool
	Attempts int // sends that counted so far
}

// Settle books the end of a call. It may be repeated with the same epoch after an error: the second one
// changes nothing and is answered like the first. Callers should give it a context of its own, that outlives a shutdown.
func (l *Ledger) Settle(ctx context.Context, r Result) (Settled, error) {
	if err := r.Key.validate(); err != nil {
		return Settled{}, err
	}
	if r.Epoch <= 0 || !r.Outcome.valid() {
		return Settled{}, invalid("payout %s: epoch %d with outcome %q", r.Key, r.Epoch, r.Outcome)
	}
	// A paid answer must be booked, whatever it contains.
	r.TransactionKey, r.Class, r.Answer, r.Handler = clean(r.TransactionKey), clean(r.Class), clean(r.Answer), clean(r.Handler)
	return l.settles.do(ctx, &r)
}

func (l *Ledger) settleBatch(ctx context.Context, batch []*call[*Result, Settled]) error {
	w := wanted(batch)
	w.promotions = nil
	return l.transact(ctx, w, func(ctx context.Context, u unit, s *snapshot, c *changes) error {
		book := l.newBook(s, c)
		for _, k := range batch {
			row := s.rows[k.req.Key]
			if k.err = nil; row == nil {
				k.err = notFound(k.req.Key)
				continue
			}
			next, eff, d := l.policy.apply(row.Row, event{kind: evSettle, now: s.now, result: *k.req})
			row.Row = next
			book.add(row, eff, nil, k.req.Handler)
			k.res = Settled{Next: d.next, RetryIn: d.retryIn, State: row.State, Stale: d.stale, Attempts: row.Attempts}
		}
		return book.close(ctx, u)
	})
}
