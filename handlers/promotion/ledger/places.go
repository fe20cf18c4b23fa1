package ledger

import (
	"context"
	"fmt"
	"time"
)

// The active set has Options.MaxActive places. A stream whose promotion is paused takes none: nothing reads it. A
// promotion that finds no place waits in promotion_streams, and AdmitWaiting gives it the next free one.
//
// The orders and the scalar subqueries say which index is read.
const (
	// How many streams are on the active set, without the paused ones.
	sqlPlacesTaken = `(SELECT count(*) FROM (SELECT 1 FROM promotion_streams AS a WHERE a.active ORDER BY a.type, a.promotion_id) AS active)
	- (SELECT count(*) FROM (SELECT 1 FROM promotions AS p WHERE p.state = 'PAUSED'
		AND coalesce((SELECT a.active FROM promotion_streams AS a WHERE a.type = p.type AND a.promotion_id = p.promotion_id), FALSE)
		ORDER BY p.type, p.promotion_id) AS paused)`

	sqlQueue = `FROM promotion_streams AS w WHERE NOT w.active AND w.waiting_since IS NOT NULL
	AND coalesce((SELECT p.state FROM promotions AS p WHERE p.type = w.type AND p.promotion_id = w.promotion_id), 'RUNNING') <> 'PAUSED'
	ORDER BY w.waiting_since, w.type, w.promotion_id`

	sqlQueueLength = `(SELECT count(*) FROM (SELECT 1 ` + sqlQueue + ` LIMIT 1) AS queue)` // 0 or 1

	// When the oldest payout that would go into the stream began to wait.
	sqlOldestHint = `(SELECT o.hint_due FROM payouts AS o WHERE o.type = CAST($1 AS text) AND o.promotion_id = CAST($2 AS bigint)
	AND o.settled_at IS NULL AND o.hint = '%s' ORDER BY o.hint_due, o.id LIMIT 1)`

	sqlAdmitAs = `WITH place AS MATERIALIZED (SELECT ` + sqlPlacesTaken + ` < CAST($4 AS bigint) AND ` + sqlQueueLength + ` = 0 AS free)
INSERT INTO promotion_streams AS s (type, promotion_id, active, total_count, waiting_since)
SELECT CAST($1 AS text), CAST($2 AS bigint), place.free, CAST($3 AS bigint), CASE WHEN NOT place.free THEN coalesce(%s, %s, %s) END
FROM place WHERE TRUE
ON CONFLICT (type, promotion_id) DO UPDATE SET active = s.active OR excluded.active,
	waiting_since = CASE WHEN NOT s.active AND NOT excluded.active THEN coalesce(s.waiting_since, excluded.waiting_since) END,
	total_count = CASE WHEN excluded.total_count > 0 THEN excluded.total_count ELSE s.total_count END
RETURNING active`

	// One statement, so that two instances at once see the same free places and admit the same promotions.
	sqlAdmitWaiting = `WITH places AS MATERIALIZED (SELECT CAST($1 AS bigint) - (` + sqlPlacesTaken + `) AS free),
first(kind, id) AS MATERIALIZED (SELECT w.type, w.promotion_id ` + sqlQueue + `
	LIMIT (SELECT CASE WHEN free > 0 THEN free ELSE 0 END FROM places))
UPDATE promotion_streams AS s SET active = TRUE, waiting_since = NULL FROM first
WHERE s.type = first.kind AND s.promotion_id = first.id AND NOT s.active
RETURNING type, promotion_id`

	sqlNoWork = `WITH waiting(kind, id) AS MATERIALIZED (SELECT w.type, w.promotion_id FROM promotion_streams AS w
	WHERE NOT w.active AND w.waiting_since IS NOT NULL AND coalesce((SELECT FALSE FROM payouts AS p
		WHERE p.type = w.type AND p.promotion_id = w.promotion_id AND p.settled_at IS NULL LIMIT 1), TRUE)
	ORDER BY w.waiting_since, w.type, w.promotion_id)
UPDATE promotion_streams AS s SET waiting_since = NULL FROM waiting
WHERE s.type = waiting.kind AND s.promotion_id = waiting.id AND NOT s.active`
)

// A payout has the hint none when the feeder is to enqueue it, and stream while its record is being accepted.
var sqlAdmit = fmt.Sprintf(sqlAdmitAs, fmt.Sprintf(sqlOldestHint, HintNone), fmt.Sprintf(sqlOldestHint, HintStream), fmt.Sprintf(sqlOldestHint, HintRetry)) //nolint:gochecknoglobals // a constant, but Go can't compute it

// Admit puts a promotion's stream on the active set, if that has a place and no other promotion waits for one, and
// reports whether the stream is on it. Otherwise a promotion with an unsettled payout waits, and the one whose payout has
// waited longest is admitted first. Admit comes before the stream is made.
func (l *Ledger) Admit(ctx context.Context, p Promotion) (bool, error) { return l.admit(ctx, p, 0) }

func (l *Ledger) admit(ctx context.Context, p Promotion, totalCount int64) (active bool, err error) {
	if err := checkActivation(p, totalCount); err != nil {
		return false, err
	}
	err = l.update(ctx, "admit", nil, func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&active) }, sqlAdmit, string(p.Type), p.ID, totalCount, l.opts.MaxActive)
	})
	return active && err == nil, err
}

// Started records that a promotion begins and how many payouts it announces (0: not known). It sets the stream active if
// there is a place. It may come twice, never, or after the first records.
func (l *Ledger) Started(ctx context.Context, p Promotion, totalCount int64) error {
	_, err := l.admit(ctx, p, totalCount)
	return err
}

// AdmitWaiting gives every free place to a promotion that waits for one, in the order of their waiting, and returns those
// that it admitted. A promotion without unsettled payouts, and one that is paused, gets none.
func (l *Ledger) AdmitWaiting(ctx context.Context) ([]Promotion, error) {
	var admitted []Promotion
	err := l.update(ctx, "admit waiting", nil, func(q querier, _ time.Time) error {
		admitted = nil
		if _, err := q.exec(ctx, sqlNoWork); err != nil {
			return err
		}
		return q.query(ctx, func(r scanner) error {
			var p Promotion
			err := r.Scan((*string)(&p.Type), &p.ID)
			admitted = append(admitted, p)
			return err
		}, sqlAdmitWaiting, l.opts.MaxActive)
	})
	if err != nil {
		return nil, err
	}
	return admitted, nil
}

// Yield takes the place of an active promotion whose stream can't be used, if another promotion waits for one, and
// reports whether it did. The promotion then waits behind all others. What is on record of its stream stays.
func (l *Ledger) Yield(ctx context.Context, p Promotion) (bool, error) {
	var n int64
	err := l.update(ctx, "yield a place", nil, func(q querier, now time.Time) error {
		var err error
		n, err = q.exec(ctx, `UPDATE promotion_streams SET active = FALSE, waiting_since = $3
			WHERE type = $1 AND promotion_id = $2 AND active AND `+sqlQueueLength+` > 0`, string(p.Type), p.ID, now)
		return err
	})
	return n > 0 && err == nil, err
}
