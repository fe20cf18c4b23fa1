package ledger

import (
	"cmp"
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Payout is a row with its message.
type Payout struct {
	payouts.Row
	Payload []byte // unchanged
	Request []byte // the bytes that are sent
	Origin  string
}

// DeadLetter is a dead letter of a payout in the outbox.
type DeadLetter struct {
	ID            int64     `json:"id"` // of the outbox
	Class         string    `json:"class"`
	Error         string    `json:"error"`
	Origin        string    `json:"origin"`
	Route         string    `json:"handler"`
	Attempts      int       `json:"attempts"`
	FirstFailedAt time.Time `json:"first_failed_at,omitzero"`
	CreatedAt     time.Time `json:"created_at"`
	PublishedAt   time.Time `json:"published_at,omitzero"` // zero: not yet
	// Offered is the payload of a conflict or an unannounced entry.
	Offered string `json:"offered,omitempty"`
}

var sqlPayouts = `SELECT ` + names(payoutColumns, "") + ` FROM payouts` //nolint:gochecknoglobals // constant, but not for the compiler

const (
	sqlOnePayout  = ` WHERE type = $1 AND promotion_id = $2 AND target_id = $3`
	sqlPayoutPage = ` WHERE type = $1 AND promotion_id = $2 AND target_id > $3 ORDER BY target_id LIMIT $4`
)

func scanPayout(r scanner) (Payout, error) {
	row, err := scanRow(r, payoutColumns)
	return row.toPayout(), err
}

func (row *storedRow) toPayout() Payout {
	return Payout{Row: row.Row, Payload: row.payload, Request: row.requestToSend(), Origin: row.origin}
}

// scanTracedPayout also returns the trace context. Headers that can't be read hide nothing else of a payout.
func scanTracedPayout(r scanner) (p Payout, traceParent string, err error) {
	row, err := scanRow(r, payoutColumns)
	if headers, bad := decodeHeaders(row.headers); bad == nil {
		traceParent = headers[pipeline.MetaTraceParent]
	}
	return row.toPayout(), traceParent, err
}

// payoutPage is the number of payouts that EachPayout reads at once.
const payoutPage = 500

// EachPayout calls fn for every payout of a promotion in order of target, in bounded memory. It is
// no snapshot: each page shows its payouts at the time of its read. An error of fn ends it and is
// returned unchanged.
func (l *Ledger) EachPayout(ctx context.Context, p payouts.Promotion, fn func(Payout) error) error {
	for last := int64(0); ; {
		page, err := selectAll(ctx, l, "payouts", func(r scanner, e *Payout, _ time.Time) (err error) {
			*e, err = scanPayout(r)
			return err
		}, sqlPayouts+sqlPayoutPage, string(p.Type), p.ID, last, payoutPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			if err := fn(e); err != nil {
				return err
			}
		}
		if len(page) < payoutPage {
			return nil
		}
		last = page[len(page)-1].Target
	}
}

// Explanation has everything about a payout.
type Explanation struct {
	Payout
	PromotionState rules.GroupState
	Calls          []payouts.Attempt // by epoch; a late answer follows the attempt of its epoch; an open call is last
	DeadLetters    []DeadLetter      // oldest first
	Audit          []Audit           // actions of operators, oldest first
	TraceParent    string            // of the trace in which it was accepted, and which its calls continue; empty: none
	Now            time.Time         // time of the database
	// NextStep is the result of the next begin, at NextStepAt at the earliest, without regard to a
	// pause. Set while the payout is unsettled.
	NextStep   rules.Next
	NextStepAt time.Time
}

// PaidLate returns the transaction key of a late answer that states a charge, or "".
func (x *Explanation) PaidLate() string {
	for _, a := range x.Calls {
		if key := a.PaidLate(); key != "" {
			return key
		}
	}
	return ""
}

// Explain returns everything about one payout, or ErrNotFound.
func (l *Ledger) Explain(ctx context.Context, k payouts.Key) (Explanation, error) {
	var x Explanation
	err := l.read(ctx, "explain", func(q querier, now time.Time) error {
		x.Now = now
		if err := q.query(ctx, func(r scanner) (err error) { x.Payout, x.TraceParent, err = scanTracedPayout(r); return err },
			sqlPayouts+sqlOnePayout, string(k.Type), k.Promotion, k.Target); err != nil || x.ID == 0 {
			return err
		}
		var err error
		if x.PromotionState, err = readPromotion(ctx, q, k.OfPromotion()); err != nil {
			return err
		}
		if x.DeadLetters, err = readDeadLetters(ctx, q, k); err != nil {
			return err
		}
		if x.Audit, err = readAudit(ctx, q, k); err != nil {
			return err
		}
		return q.query(ctx, func(r scanner) error {
			var a payouts.Attempt
			err := r.Scan(&a.Epoch, &a.Late, &a.Number, (*string)(&a.Kind), &a.Instance,
				(*portable.Time)(&a.StartedAt), (*portable.Time)(&a.EndedAt), (*string)(&a.Outcome), &a.Class, &a.Answer, &a.Status)
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
	if open, ok := x.OpenCall(); ok {
		x.Calls = append(x.Calls, payouts.AttemptOf(open))
	}
	if !x.State.Settled() {
		x.NextStep, x.NextStepAt = l.policy.NextBegin(x.Row.Row, x.PromotionState, x.Now)
	}
	return x, nil
}

// Sorted in Go: with ORDER BY id the planner, which may not sort, would scan the complete outbox.
const sqlDeadLetters = `SELECT id, class, error, origin, handler, attempts, first_failed_at, created_at, published_at,
	CASE WHEN class IN ('conflict', 'unannounced') THEN payload END FROM outbox
WHERE kind = 'dead' AND type = $1 AND promotion_id = $2 AND target_id = $3`

func readDeadLetters(ctx context.Context, q querier, k payouts.Key) (found []DeadLetter, err error) {
	err = q.query(ctx, func(r scanner) error {
		var d DeadLetter
		var offered []byte
		err := r.Scan(&d.ID, &d.Class, &d.Error, &d.Origin, &d.Route, &d.Attempts,
			(*portable.Time)(&d.FirstFailedAt), (*portable.Time)(&d.CreatedAt), (*portable.Time)(&d.PublishedAt), &offered)
		d.Offered = string(offered)
		found = append(found, d)
		return err
	}, sqlDeadLetters, string(k.Type), k.Promotion, k.Target)
	sorted.By(found, func(a, b DeadLetter) int { return cmp.Compare(a.ID, b.ID) })
	return found, err
}

func readPromotion(ctx context.Context, q querier, p payouts.Promotion) (s rules.GroupState, err error) {
	err = q.query(ctx, func(r scanner) error { return r.Scan((*string)(&s)) },
		`SELECT state FROM promotions WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID)
	return s, err
}
