package ledger

import (
	"context"
	"time"
)

// Entry is a payout as the books have it.
type Entry struct {
	Row
	Payload []byte // as it came
	Request []byte // as it is sent
	Origin  string
}

const sqlEntryColumns = `SELECT ` + pgRowColumns + `, ` + pgBodyColumns + ` FROM payouts AS p WHERE p.type = $1 AND p.promotion_id = $2`

const sqlPage = sqlEntryColumns + ` AND p.target_id > $3 ORDER BY p.target_id LIMIT $4`

func scanEntry(r scanner) (Entry, error) {
	var e Entry
	var request, recordKey []byte
	var headers string
	var hintDue, lease, next, first, started, accepted, settled dbTime
	err := r.Scan(&e.ID, (*string)(&e.Type), &e.Promotion, &e.Target, &e.SummaryID, (*string)(&e.State), (*string)(&e.Hint), &hintDue, &e.Version,
		&e.Epoch, &e.Attempts, &e.Asks, &e.Failures, &e.Interruptions, &lease, &next, &first,
		&e.MaybeCharged, &e.Asking, &e.TransactionKey, &e.LastClass, &e.LastError, &started, &e.AttemptBy, &accepted, &settled,
		&e.Payload, &request, &headers, &recordKey, &e.Origin)
	e.HintDue, e.LeaseUntil, e.NextAttemptAt, e.FirstSentAt = hintDue.Time, lease.Time, next.Time, first.Time
	e.AttemptStartedAt, e.AcceptedAt, e.SettledAt = started.Time, accepted.Time, settled.Time
	if e.Request = request; request == nil {
		e.Request = e.Payload
	}
	return e, err
}

// booksPage is how many payouts Books holds in memory at once.
const booksPage = 500

// Books calls fn for every payout of a promotion in order of target, in bounded memory. It is not one moment:
// a payout settled meanwhile is told as it is when its page is read. An error of fn ends it and is returned as it is.
func (l *Ledger) Books(ctx context.Context, p Promotion, fn func(Entry) error) error {
	for last := int64(0); ; {
		page := make([]Entry, 0, booksPage)
		err := l.read(ctx, "books", func(q querier, _ time.Time) error {
			return q.query(ctx, func(r scanner) error {
				e, err := scanEntry(r)
				page = append(page, e)
				return err
			}, sqlPage, string(p.Type), p.ID, last, booksPage)
		})
		if err != nil {
			return err
		}
		for _, e := range page {
			if err := fn(e); err != nil {
				return err
			}
		}
		if len(page) < booksPage {
			return nil
		}
		last = page[len(page)-1].Target
	}
}

// Explanation is everything the ledger knows of a payout.
type Explanation struct {
	Entry
	PromotionState PromotionState
	Calls          []Attempt // in order of epoch; a late answer after the line of its epoch
}

// Explain tells everything about one payout, or answers ErrNotFound.
func (l *Ledger) Explain(ctx context.Context, k Key) (Explanation, error) {
	var x Explanation
	err := l.read(ctx, "explain", func(q querier, _ time.Time) error {
		if err := q.query(ctx, func(r scanner) (err error) { x.Entry, err = scanEntry(r); return err },
			sqlEntryColumns+` AND p.target_id = $3`, string(k.Type), k.Promotion, k.Target); err != nil || x.ID == 0 {
			return err
		}
		if err := q.query(ctx, func(r scanner) error { return r.Scan((*string)(&x.PromotionState)) },
			`SELECT state FROM promotions WHERE type = $1 AND promotion_id = $2`, string(k.Type), k.Promotion); err != nil {
			return err
		}
		return q.query(ctx, func(r scanner) error {
			var a Attempt
			var started, ended dbTime
			err := r.Scan(&a.Epoch, &a.Late, &a.Number, (*string)(&a.Kind), &a.Instance, &started, &ended, (*string)(&a.Outcome), &a.Class, &a.Answer, &a.Status)
			a.StartedAt, a.EndedAt = started.Time, ended.Time
			x.Calls = append(x.Calls, a)
			return err
		}, `SELECT epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status FROM attempts
			WHERE payout_id = $1 ORDER BY epoch, late`, x.ID)
	})
	if err != nil {
		return Explanation{}, err
	}
	if x.ID == 0 {
		return Explanation{}, notFound(k)
	}
	return x, nil
}

// Calls counts the lines in the book of attempts of a promotion by outcome: how often the API was called.
func (l *Ledger) Calls(ctx context.Context, p Promotion) (map[Outcome]int64, error) {
	counts := map[Outcome]int64{}
	err := l.read(ctx, "count calls", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var o string
			var n int64
			err := r.Scan(&o, &n)
			counts[Outcome(o)] = n
			return err
		}, `SELECT a.outcome, count(*) FROM payouts AS p JOIN attempts AS a ON a.payout_id = p.id
			WHERE p.type = $1 AND p.promotion_id = $2 AND NOT a.late GROUP BY a.outcome`, string(p.Type), p.ID)
	})
	return counts, err
}
