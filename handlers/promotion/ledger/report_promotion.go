package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// PayoutCounts are the numbers of the payouts of a promotion. Accepted is the sum of the others.
type PayoutCounts struct {
	Accepted  int64 `json:"accepted"`
	Paid      int64 `json:"paid"`
	Failed    int64 `json:"failed"`
	Unknown   int64 `json:"unknown"`
	Cancelled int64 `json:"cancelled"`
	Pending   int64 `json:"pending"` // unsettled, in any state
}

// Finished reports whether all accepted payouts are settled, and at least as many were accepted as the started event
// announced. announced 0: not known.
func (c PayoutCounts) Finished(announced int64) bool {
	return c.Accepted > 0 && c.Pending == 0 && c.Accepted >= announced
}

func (c *PayoutCounts) sum() { c.Accepted = c.Paid + c.Failed + c.Unknown + c.Cancelled + c.Pending }

// Counts is the state of a promotion at one moment.
type Counts struct {
	payouts.Promotion `json:"-"`
	State             rules.GroupState `json:"state"`
	Active            bool             `json:"active"`
	TotalCount        int64            `json:"total_count"` // announced; 0: unknown

	PayoutCounts

	InFlight  int64 `json:"in_flight"`   // of the pending: leased by a worker
	Ambiguous int64 `json:"ambiguous"`   // of the pending: an earlier call may have charged
	InNoQueue int64 `json:"in_no_queue"` // of the pending: in no queue, enqueued by the feeder
	InStream  int64 `json:"in_stream"`   // of the pending: in the stream
	InRetry   int64 `json:"in_retry"`    // of the pending: in the retry topic or with a worker
	// WithWorker: of those in InRetry, a worker has it or has ended without a word.
	WithWorker int64 `json:"with_worker"`
	// PerhapsCharged: of the pending, a request may have charged, that of a call which runs now included. Calling are
	// those of them for which the only request that may have charged is one that runs now.
	PerhapsCharged int64 `json:"perhaps_charged"`
	Calling        int64 `json:"calling"`

	Dead     int64 `json:"dead"`     // dead letters written; they overlap with the payouts
	Conflict int64 `json:"conflict"` // dead letters of class conflict

	// OldestUnpaid is how long the oldest unsettled payout has been known; 0 without one.
	OldestUnpaid time.Duration `json:"-"`
	// WaitsForPlace is the waiting time for a place on the active set; 0: it does not wait.
	WaitsForPlace time.Duration `json:"-"`
	// ChangedFor is the time since an operator changed the state; 0: nobody has.
	ChangedFor time.Duration `json:"-"`
}

// One statement, so that all counts are of one moment.
const sqlStatus = `SELECT coalesce(p.state, 'RUNNING'), coalesce(s.active, FALSE), coalesce(s.total_count, 0),
	m.paid, m.failed, m.unknown, m.cancelled, u.pending, u.in_flight, u.ambiguous, u.no_hint, u.in_stream, u.in_retry, u.oldest, u.with_worker, u.perhaps_charged, u.calling,
	d.dead, d.conflict, p.state IS NOT NULL OR s.type IS NOT NULL, CASE WHEN NOT s.active THEN s.waiting_since END,
	CASE WHEN p.changed_at > p.created_at THEN p.changed_at END
FROM (SELECT CAST(coalesce(sum(paid), 0) AS bigint) AS paid, CAST(coalesce(sum(failed), 0) AS bigint) AS failed,
		CAST(coalesce(sum(unknown), 0) AS bigint) AS unknown, CAST(coalesce(sum(cancelled), 0) AS bigint) AS cancelled
	FROM promotion_summaries WHERE type = $1 AND promotion_id = $2) AS m
CROSS JOIN (SELECT count(*) AS pending, count(CASE WHEN lease_until > $3 THEN 1 END) AS in_flight,
		count(CASE WHEN maybe_charged THEN 1 END) AS ambiguous, count(CASE WHEN hint = 'none' THEN 1 END) AS no_hint,
		count(CASE WHEN hint = 'stream' THEN 1 END) AS in_stream, count(CASE WHEN hint = 'retry' THEN 1 END) AS in_retry,
		min(accepted_at) AS oldest, count(CASE WHEN hint = 'retry' AND state = 'SENDING' THEN 1 END) AS with_worker,
		count(CASE WHEN maybe_charged OR state = 'SENDING' AND NOT asking THEN 1 END) AS perhaps_charged,
		count(CASE WHEN NOT maybe_charged AND state = 'SENDING' AND NOT asking AND lease_until > $3 THEN 1 END) AS calling
	FROM payouts WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL) AS u
CROSS JOIN (SELECT count(*) AS dead, count(CASE WHEN class = 'conflict' THEN 1 END) AS conflict
	FROM outbox WHERE kind = 'dead' AND type = $1 AND promotion_id = $2) AS d
LEFT JOIN promotions AS p ON p.type = $1 AND p.promotion_id = $2
LEFT JOIN promotion_streams AS s ON s.type = $1 AND s.promotion_id = $2`

// Status counts a promotion. Its cost depends on the number of unsettled payouts only. An unknown
// promotion returns ErrNotFound.
func (l *Ledger) Status(ctx context.Context, p payouts.Promotion) (Counts, error) {
	c := Counts{Promotion: p}
	known := false
	err := l.read(ctx, "status", func(q querier, now time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var oldest, waiting, changed time.Time
			if err := r.Scan((*string)(&c.State), &c.Active, &c.TotalCount, &c.Paid, &c.Failed, &c.Unknown, &c.Cancelled,
				&c.Pending, &c.InFlight, &c.Ambiguous, &c.InNoQueue, &c.InStream, &c.InRetry,
				(*portable.Time)(&oldest), &c.WithWorker, &c.PerhapsCharged, &c.Calling, &c.Dead, &c.Conflict, &known,
				(*portable.Time)(&waiting), (*portable.Time)(&changed)); err != nil {
				return err
			}
			if !oldest.IsZero() {
				c.OldestUnpaid = now.Sub(oldest)
			}
			if !waiting.IsZero() {
				c.WaitsForPlace = now.Sub(waiting)
			}
			if !changed.IsZero() {
				c.ChangedFor = now.Sub(changed)
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
	c.sum()
	return c, nil
}

// Known reports whether a record or a started event of a promotion has come, or an operator has steered it. Its cost does
// not depend on the payouts.
func (l *Ledger) Known(ctx context.Context, p payouts.Promotion) (known bool, err error) {
	err = l.read(ctx, "known", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&known) },
			`SELECT EXISTS (SELECT 1 FROM promotions WHERE type = $1 AND promotion_id = $2)
				OR EXISTS (SELECT 1 FROM promotion_streams WHERE type = $1 AND promotion_id = $2)`, string(p.Type), p.ID)
	})
	return known, err
}

// Leases returns the number of payouts of a promotion that each instance has leased. Its cost depends on the number
// of payouts that are in the retry topic or with a worker.
func (l *Ledger) Leases(ctx context.Context, p payouts.Promotion) (map[string]int64, error) {
	all := map[string]int64{}
	err := l.read(ctx, "leases", func(q querier, now time.Time) error {
		clear(all)
		return q.query(ctx, func(r scanner) error {
			var instance string
			var n int64
			err := r.Scan(&instance, &n)
			all[instance] = n
			return err
		}, `SELECT attempt_by, count(*) FROM payouts
			WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND hint = 'retry' AND lease_until > $3 GROUP BY attempt_by`,
			string(p.Type), p.ID, now)
	})
	return all, err
}

// UnderWay returns how many payouts of a promotion are leased, so that they may be paid also after a pause, and how long
// the longest lease still lasts. It costs as much as Leases.
func (l *Ledger) UnderWay(ctx context.Context, p payouts.Promotion) (n int64, longest time.Duration, err error) {
	err = l.read(ctx, "under way", func(q querier, now time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var until time.Time
			if err := r.Scan(&n, (*portable.Time)(&until)); err != nil {
				return err
			}
			longest = 0
			if n > 0 {
				longest = until.Sub(now)
			}
			return nil
		}, `SELECT count(*), max(lease_until) FROM payouts
			WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND hint = 'retry' AND lease_until > $3`,
			string(p.Type), p.ID, now)
	})
	return n, longest, err
}

// SettledCount returns the number of settled payouts of a promotion, from its summaries. The cost
// does not depend on its size, so a progress bar may call it often.
func (l *Ledger) SettledCount(ctx context.Context, p payouts.Promotion) (n int64, err error) {
	err = l.read(ctx, "settled", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&n) },
			`SELECT CAST(coalesce(sum(paid + failed + unknown + cancelled), 0) AS bigint) FROM promotion_summaries WHERE type = $1 AND promotion_id = $2`,
			string(p.Type), p.ID)
	})
	return n, err
}

// Now returns the time of the database, the clock of all times in the ledger.
func (l *Ledger) Now(ctx context.Context) (at time.Time, err error) {
	err = l.read(ctx, "now", func(_ querier, now time.Time) error { at = now; return nil })
	return at, err
}

// PausedPromotion is a promotion that an operator has paused.
type PausedPromotion struct {
	payouts.Promotion
	For time.Duration // by the clock of the database
	// Holds: it has unsettled payouts, which the pause holds back.
	Holds bool
}

const sqlPaused = `SELECT type, promotion_id, changed_at,
	EXISTS (SELECT 1 FROM payouts AS p WHERE p.type = promotions.type AND p.promotion_id = promotions.promotion_id AND p.settled_at IS NULL)
FROM promotions WHERE state = 'PAUSED' ORDER BY type, promotion_id`

// Paused returns the paused promotions, also those without unsettled payouts.
func (l *Ledger) Paused(ctx context.Context) ([]PausedPromotion, error) {
	return selectAll(ctx, l, "paused promotions", func(r scanner, p *PausedPromotion, now time.Time) error {
		var since time.Time
		err := r.Scan((*string)(&p.Type), &p.ID, (*portable.Time)(&since), &p.Holds)
		p.For = now.Sub(since)
		return err
	}, sqlPaused)
}
