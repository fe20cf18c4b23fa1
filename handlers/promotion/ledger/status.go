package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Counts is the state of a promotion at one moment. Accepted = Paid + Failed + Unknown + Cancelled + Pending;
// Dead overlaps with them.
type Counts struct {
	Promotion  `json:"-"`
	State      PromotionState `json:"state"`
	Active     bool           `json:"active"`
	TotalCount int64          `json:"total_count"` // announced; 0: not known

	Accepted  int64 `json:"accepted"`
	Paid      int64 `json:"paid"`
	Failed    int64 `json:"failed"`
	Unknown   int64 `json:"unknown"`
	Cancelled int64 `json:"cancelled"`
	Pending   int64 `json:"pending"` // unsettled, whatever their state

	InFlight  int64 `json:"in_flight"` // of the pending: a worker holds a lease
	Ambiguous int64 `json:"ambiguous"` // of the pending: an earlier call may have charged
	NoHint    int64 `json:"no_hint"`   // of the pending: waiting for the feeder
	InStream  int64 `json:"in_stream"` // of the pending: believed to be in the stream
	InRetry   int64 `json:"in_retry"`  // of the pending: in the retry topic or with a worker

	Dead     int64 `json:"dead"`     // dead letters written
	Conflict int64 `json:"conflict"` // dead letters of records that came second

	// OldestUnpaid is how long the oldest unsettled payout has been known; 0 without one.
	OldestUnpaid time.Duration `json:"-"`
	// WaitsForPlace is how long the promotion has waited for a place on the active set; 0 if it does not wait.
	WaitsForPlace time.Duration `json:"-"`
}

// One statement, so that the counts are of one moment.
const sqlStatus = `SELECT coalesce(p.state, 'RUNNING'), coalesce(s.active, FALSE), coalesce(s.total_count, 0),
	m.paid, m.failed, m.unknown, m.cancelled, u.pending, u.in_flight, u.ambiguous, u.no_hint, u.in_stream, u.in_retry, u.oldest,
	d.dead, d.conflict, p.state IS NOT NULL OR s.type IS NOT NULL, CASE WHEN NOT s.active THEN s.waiting_since END
FROM (SELECT CAST(coalesce(sum(paid), 0) AS bigint) AS paid, CAST(coalesce(sum(failed), 0) AS bigint) AS failed,
		CAST(coalesce(sum(unknown), 0) AS bigint) AS unknown, CAST(coalesce(sum(cancelled), 0) AS bigint) AS cancelled
	FROM promotion_summaries WHERE type = $1 AND promotion_id = $2) AS m
CROSS JOIN (SELECT count(*) AS pending, count(CASE WHEN lease_until > $3 THEN 1 END) AS in_flight,
		count(CASE WHEN maybe_charged THEN 1 END) AS ambiguous, count(CASE WHEN hint = 'none' THEN 1 END) AS no_hint,
		count(CASE WHEN hint = 'stream' THEN 1 END) AS in_stream, count(CASE WHEN hint = 'retry' THEN 1 END) AS in_retry,
		min(accepted_at) AS oldest
	FROM payouts WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL) AS u
CROSS JOIN (SELECT count(*) AS dead, count(CASE WHEN class = 'conflict' THEN 1 END) AS conflict
	FROM outbox WHERE kind = 'dead' AND type = $1 AND promotion_id = $2) AS d
LEFT JOIN promotions AS p ON p.type = $1 AND p.promotion_id = $2
LEFT JOIN promotion_streams AS s ON s.type = $1 AND s.promotion_id = $2`

// Status counts a promotion. Its cost grows with the unsettled payouts, not with the settled ones. A
// promotion that was never heard of answers ErrNotFound.
func (l *Ledger) Status(ctx context.Context, p Promotion) (Counts, error) {
	c := Counts{Promotion: p}
	known := false
	err := l.read(ctx, "status", func(q querier, now time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var oldest, waiting sqldb.Time
			if err := r.Scan((*string)(&c.State), &c.Active, &c.TotalCount, &c.Paid, &c.Failed, &c.Unknown, &c.Cancelled,
				&c.Pending, &c.InFlight, &c.Ambiguous, &c.NoHint, &c.InStream, &c.InRetry, &oldest, &c.Dead, &c.Conflict, &known, &waiting); err != nil {
				return err
			}
			if !oldest.IsZero() {
				c.OldestUnpaid = now.Sub(oldest.Time)
			}
			if !waiting.IsZero() {
				c.WaitsForPlace = now.Sub(waiting.Time)
			}
			return nil
		}, sqlStatus, string(p.Type), p.ID, now)
	})
	if err != nil {
		return Counts{}, err
	}
	if !known {
		return Counts{}, fmt.Errorf("ledger: promotion %s: %w", p, ErrNotFound)
	}
	c.Accepted = c.Paid + c.Failed + c.Unknown + c.Cancelled + c.Pending
	return c, nil
}

// Settled returns how many payouts of a promotion are settled, from its summaries: it costs the same however large the
// promotion is, so that a progress bar may ask often.
func (l *Ledger) Settled(ctx context.Context, p Promotion) (n int64, err error) {
	err = l.read(ctx, "settled", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&n) },
			`SELECT CAST(coalesce(sum(paid + failed + unknown + cancelled), 0) AS bigint) FROM promotion_summaries WHERE type = $1 AND promotion_id = $2`,
			string(p.Type), p.ID)
	})
	return n, err
}

// Now returns the database's time, which all times in the ledger are of.
func (l *Ledger) Now(ctx context.Context) (at time.Time, err error) {
	err = l.read(ctx, "now", func(_ querier, now time.Time) error { at = now; return nil })
	return at, err
}

// PausedPromotion is a promotion that a person has paused.
type PausedPromotion struct {
	Promotion
	For time.Duration // since when, by the database's clock
}

const sqlPaused = `SELECT type, promotion_id, changed_at FROM promotions WHERE state = 'PAUSED' ORDER BY type, promotion_id`

// Paused returns the promotions that are paused, whether they have unsettled payouts or none yet.
func (l *Ledger) Paused(ctx context.Context) ([]PausedPromotion, error) {
	var all []PausedPromotion
	err := l.read(ctx, "paused promotions", func(q querier, now time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var p PausedPromotion
			var since sqldb.Time
			err := r.Scan((*string)(&p.Type), &p.ID, &since)
			p.For = now.Sub(since.Time)
			all = append(all, p)
			return err
		}, sqlPaused)
	})
	return all, err
}

// Waiting says how long a promotion's work has been waiting.
type Waiting struct {
	Work
	// OldestUnpaid is the age of the oldest payout among those that have waited longest without a hint, in the
	// stream and for a retry. It costs six index probes; Status has the exact value.
	OldestUnpaid time.Duration
	// Overdue is for how long the longest-waiting hint could have been worked on; 0 when nothing is due, or while the
	// promotion waits for a place on the active set.
	Overdue time.Duration
}

const sqlWaiting = `SELECT hint_due, accepted_at FROM payouts WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND hint = $3
ORDER BY hint_due, id LIMIT 1`

// Waiting tells of every promotion that Unfinished does how long its work has been waiting. It is cheap
// enough for a readiness check.
func (l *Ledger) Waiting(ctx context.Context) ([]Waiting, error) {
	work, err := l.Unfinished(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Waiting, len(work))
	err = l.read(ctx, "waiting payouts", func(q querier, now time.Time) error {
		for i, w := range work {
			all[i].Work = w
			for _, h := range []Hint{HintNone, HintStream, HintRetry} {
				if err := q.query(ctx, func(r scanner) error {
					var due, accepted sqldb.Time
					err := r.Scan(&due, &accepted)
					all[i].OldestUnpaid = max(all[i].OldestUnpaid, now.Sub(accepted.Time))
					if !w.Queued {
						all[i].Overdue = max(all[i].Overdue, now.Sub(due.Time))
					}
					return err
				}, sqlWaiting, string(w.Type), w.ID, string(h)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return all, err
}
