package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The active set has Options.MaxActive places. A paused promotion takes none, because its stream is
// not read. A promotion without a place waits in promotion_streams, and AdmitWaiting gives it the
// next free one.
//
// The ORDER BY clauses and the scalar subqueries select the index that is read.
const (
	// Number of active streams, without the paused ones.
	sqlActiveCount = `(SELECT count(*) FROM (SELECT 1 FROM promotion_streams AS a WHERE a.active ORDER BY a.type, a.promotion_id) AS active)
	- (SELECT count(*) FROM (SELECT 1 FROM promotions AS p WHERE p.state = 'PAUSED'
		AND coalesce((SELECT a.active FROM promotion_streams AS a WHERE a.type = p.type AND a.promotion_id = p.promotion_id), FALSE)
		ORDER BY p.type, p.promotion_id) AS paused)`

	sqlWaiting = `FROM promotion_streams AS w WHERE NOT w.active AND w.waiting_since IS NOT NULL
	AND coalesce((SELECT p.state FROM promotions AS p WHERE p.type = w.type AND p.promotion_id = w.promotion_id), 'RUNNING') <> 'PAUSED'
	ORDER BY w.waiting_since, w.type, w.promotion_id`

	// 0 or 1.
	sqlAnyWaiting = `(SELECT count(*) FROM (SELECT 1 ` + sqlWaiting + ` LIMIT 1) AS queue)`

	// Time since when the oldest payout for the stream waits.
	sqlOldestQueued = `(SELECT o.feed_at FROM payouts AS o WHERE o.type = CAST($1 AS text) AND o.promotion_id = CAST($2 AS bigint)
	AND o.settled_at IS NULL AND o.feed = '`
	sqlOldestEnd = `' ORDER BY o.feed_at, o.id LIMIT 1)`

	// A payout for the feeder has the queue location none. While its record is accepted it has
	// stream.
	sqlAdmit = `WITH place AS MATERIALIZED (SELECT ` + sqlActiveCount + ` < CAST($4 AS bigint) AND ` + sqlAnyWaiting + ` = 0 AS free)
INSERT INTO promotion_streams AS s (type, promotion_id, active, total_count, waiting_since)
SELECT CAST($1 AS text), CAST($2 AS bigint), place.free, CAST($3 AS bigint), CASE WHEN NOT place.free THEN coalesce(` +
		sqlOldestQueued + string(rules.QueueNone) + sqlOldestEnd + `, ` +
		sqlOldestQueued + string(rules.QueueStream) + sqlOldestEnd + `, ` +
		sqlOldestQueued + string(rules.QueueRetry) + sqlOldestEnd + `) END
FROM place WHERE TRUE
ON CONFLICT (type, promotion_id) DO UPDATE SET active = s.active OR excluded.active,
	waiting_since = CASE WHEN NOT s.active AND NOT excluded.active THEN coalesce(s.waiting_since, excluded.waiting_since) END,
	total_count = CASE WHEN excluded.total_count > 0 THEN excluded.total_count ELSE s.total_count END
RETURNING active`

	// One statement, so that two instances at once see the same free places and admit the same
	// promotions.
	sqlAdmitWaiting = `WITH places AS MATERIALIZED (SELECT CAST($1 AS bigint) - (` + sqlActiveCount + `) AS free),
first(kind, id) AS MATERIALIZED (SELECT w.type, w.promotion_id ` + sqlWaiting + `
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

// Admit puts a promotion on the active set if there is a free place and no other promotion waits.
// It reports whether the promotion is active. Otherwise a promotion with an unsettled payout waits,
// in the order of the oldest payouts. Admit precedes the creation of the stream. It always writes, so
// after it the synchronous standby has the payouts that the feeder has read before.
func (l *Ledger) Admit(ctx context.Context, p payouts.Promotion) (bool, error) {
	return l.admit(ctx, p, 0)
}

func (l *Ledger) admit(ctx context.Context, p payouts.Promotion, totalCount int64) (active bool, err error) {
	if err := checkActivation(p, totalCount); err != nil {
		return false, err
	}
	err = l.routine(ctx, "admit", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&active) }, sqlAdmit, string(p.Type), p.ID, totalCount, l.opts.MaxActive)
	})
	return active && err == nil, err
}

// Started records the start of a promotion and its number of payouts (0: unknown). It activates the
// promotion if there is a free place. It may be called twice, never, or after the first records.
func (l *Ledger) Started(ctx context.Context, p payouts.Promotion, totalCount int64) error {
	_, err := l.admit(ctx, p, totalCount)
	return err
}

// AdmitWaiting gives every free place to a waiting promotion, the longest waiting first, and
// returns the admitted ones. A promotion that is paused or has no unsettled payout gets none.
func (l *Ledger) AdmitWaiting(ctx context.Context) ([]payouts.Promotion, error) {
	var admitted []payouts.Promotion
	err := l.routine(ctx, "admit waiting", func(q querier, _ time.Time) error {
		admitted = nil
		if _, err := q.exec(ctx, sqlNoWork); err != nil {
			return err
		}
		return q.query(ctx, func(r scanner) error {
			var p payouts.Promotion
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

// Yield frees the place of an active promotion whose stream can't be used, if another promotion
// waits, and reports whether it did. The promotion then waits behind all others. The recorded
// incarnation of its stream stays.
func (l *Ledger) Yield(ctx context.Context, p payouts.Promotion) (bool, error) {
	var n int64
	err := l.routine(ctx, "yield a place", func(q querier, now time.Time) error {
		var err error
		n, err = q.exec(ctx, `UPDATE promotion_streams SET active = FALSE, waiting_since = $3
			WHERE type = $1 AND promotion_id = $2 AND active AND `+sqlAnyWaiting+` > 0`, string(p.Type), p.ID, now)
		return err
	})
	return n > 0 && err == nil, err
}

// ActiveStream is the stream of an active promotion.
type ActiveStream struct {
	payouts.Promotion
	TotalCount int64
	Paused     bool // neither polled nor cleaned up
}

const sqlActive = `SELECT s.promotion_id, s.total_count,
	coalesce((SELECT p.state FROM promotions AS p WHERE p.type = s.type AND p.promotion_id = s.promotion_id), 'RUNNING')
FROM promotion_streams AS s WHERE s.type = $1 AND s.active ORDER BY s.promotion_id`

// Active returns the active streams of a type, in order of promotion.
func (l *Ledger) Active(ctx context.Context, t payouts.Type) ([]ActiveStream, error) {
	return selectAll(ctx, l, "active streams", func(r scanner, a *ActiveStream, _ time.Time) error {
		a.Type = t
		var state string
		err := r.Scan(&a.ID, &a.TotalCount, &state)
		a.Paused = rules.GroupState(state) == rules.GroupPaused
		return err
	}, sqlActive, string(t))
}

// Activate puts a promotion on the active set, even without a free place. totalCount 0 keeps the
// recorded value. It is for a stream that exists and may have entries; Admit is for all others.
func (l *Ledger) Activate(ctx context.Context, p payouts.Promotion, totalCount int64) error {
	if err := checkActivation(p, totalCount); err != nil {
		return err
	}
	return l.routine(ctx, "activate", func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `INSERT INTO promotion_streams AS s (type, promotion_id, active, total_count) VALUES ($1, $2, TRUE, $3)
			ON CONFLICT (type, promotion_id) DO UPDATE SET active = TRUE, waiting_since = NULL,
			total_count = CASE WHEN excluded.total_count > 0 THEN excluded.total_count ELSE s.total_count END`,
			string(p.Type), p.ID, totalCount)
		return err
	})
}

func checkActivation(p payouts.Promotion, totalCount int64) error {
	if totalCount < 0 {
		return rules.Invalid("promotion %s: the total count is %d", p, totalCount)
	}
	return p.Validate()
}

// ActivateKnown is Activate for a promotion that is in the ledger. For any other, known is false
// and nothing changes.
func (l *Ledger) ActivateKnown(ctx context.Context, p payouts.Promotion) (known bool, err error) {
	err = l.read(ctx, "revive", func(q querier, _ time.Time) error {
		known = false
		return q.query(ctx, func(scanner) error { known = true; return nil }, `SELECT 1 FROM promotions WHERE type = $1 AND promotion_id = $2
			UNION ALL SELECT 1 FROM promotion_streams WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID)
	})
	if err != nil || !known {
		return false, err
	}
	return true, l.Activate(ctx, p, 0)
}

// Deactivate removes a promotion from the active set and deletes its recorded incarnation. It
// precedes the script that deletes the stream. If that script finds the stream not drained,
// Activate follows. Few payouts of the promotion are settled after it, so it also folds the slots of
// its summaries.
func (l *Ledger) Deactivate(ctx context.Context, p payouts.Promotion) error {
	l.feedNext.Delete(p)
	return l.routine(ctx, "deactivate", func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `UPDATE promotion_streams SET active = FALSE, incarnation = '', waiting_since = NULL
			WHERE type = $1 AND promotion_id = $2 AND active`, string(p.Type), p.ID)
		if s, ok := l.store.(summaryFolder); ok && err == nil {
			err = s.foldSummaries(ctx, q, p)
		}
		return err
	})
}

// summaryFolder is a store whose summaries have slots, so that settles at the same time do not wait
// for each other. foldSummaries adds the slots of a promotion to its summaries and deletes them.
type summaryFolder interface {
	foldSummaries(ctx context.Context, q querier, p payouts.Promotion) error
}
