package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// UnfinishedPromotion is a promotion with unsettled payouts that is not paused.
type UnfinishedPromotion struct {
	payouts.Promotion
	State         rules.GroupState
	Active        bool
	WaitsForPlace bool // it waits for a place on the active set
	TotalCount    int64
	Incarnation   string // recorded incarnation of its stream; empty: none
}

// Unfinished returns every promotion with unsettled payouts that is not paused, active or not. Its
// cost depends on their number, not on that of the payouts.
func (l *Ledger) Unfinished(ctx context.Context) ([]UnfinishedPromotion, error) {
	return selectAll(ctx, l, "unfinished promotions", func(r scanner, w *UnfinishedPromotion, _ time.Time) error {
		return r.Scan(w.columns()...)
	}, sqlUnfinished)
}

// columns are the destinations of the columns of sqlUnfinished.
func (w *UnfinishedPromotion) columns() []any {
	return []any{(*string)(&w.Type), &w.ID, (*string)(&w.State), &w.Active, &w.WaitsForPlace, &w.TotalCount, &w.Incarnation}
}

// A loose index scan: two index probes for each promotion. Without the plus SQLite searches the index by
// the type alone, and reads all promotions of a type for each of them.
const sqlOpenPromotions = `WITH RECURSIVE open(type, promotion_id) AS (
	SELECT * FROM (SELECT type, promotion_id FROM payouts WHERE settled_at IS NULL ORDER BY type, promotion_id LIMIT 1) AS first
	UNION ALL
	SELECT (SELECT p.type FROM payouts AS p WHERE p.settled_at IS NULL AND (p.type, p.promotion_id) > (o.type, +o.promotion_id)
			ORDER BY p.type, p.promotion_id LIMIT 1),
		(SELECT p.promotion_id FROM payouts AS p WHERE p.settled_at IS NULL AND (p.type, p.promotion_id) > (o.type, +o.promotion_id)
			ORDER BY p.type, p.promotion_id LIMIT 1)
	FROM open AS o WHERE o.type IS NOT NULL
)
`

const sqlUnfinishedRows = `SELECT o.type, o.promotion_id,
	coalesce((SELECT pr.state FROM promotions AS pr WHERE pr.type = o.type AND pr.promotion_id = o.promotion_id), 'RUNNING') AS state,
	coalesce((SELECT s.active FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), FALSE) AS active,
	coalesce((SELECT NOT s.active AND s.waiting_since IS NOT NULL FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), FALSE) AS queued,
	coalesce((SELECT s.total_count FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), 0) AS total_count,
	coalesce((SELECT s.incarnation FROM promotion_streams AS s WHERE s.type = o.type AND s.promotion_id = o.promotion_id), '') AS incarnation
	FROM open AS o WHERE o.type IS NOT NULL`

const (
	sqlUnfinishedEnd = `) AS w WHERE state <> 'PAUSED' ORDER BY type, promotion_id`

	sqlUnfinishedFrom = ` FROM (` + sqlUnfinishedRows + sqlUnfinishedEnd

	sqlUnfinished = sqlOpenPromotions + `SELECT w.*` + sqlUnfinishedFrom
)

// WaitTime is the age of the work of a promotion.
type WaitTime struct {
	UnfinishedPromotion
	// OldestUnpaid is the age of the oldest payout among those that are first in the order of each
	// queue location. Status has the exact value, at a higher cost.
	OldestUnpaid time.Duration
	// Overdue is the time since when the longest-waiting payout is due, found in the same way. It is
	// 0 when none is due, or while the promotion waits for a place.
	Overdue time.Duration
}

// The first payout in the order of a location has the smallest value of the column that orders it.
// The smallest value of the other column is that of the first payouts. Their number is smaller when
// there are more promotions, so that one statement reads at most 3 * 50,000 payouts, and 30 per
// promotion if there are more than 5,000.
const (
	sqlFirstPayouts = ` FROM payouts AS p WHERE p.type = w.type AND p.promotion_id = w.promotion_id AND p.settled_at IS NULL AND p.feed = `

	sqlFirstLimit = ` ORDER BY p.feed_at, p.id LIMIT (SELECT CASE WHEN count(*) <= 50 THEN 1000 WHEN count(*) <= 5000 THEN 50000 / count(*) ELSE 10 END FROM open)`

	sqlWaitTimes = sqlOpenPromotions + `SELECT w.*,
	(SELECT p.feed_at` + sqlFirstPayouts + `'none' ORDER BY p.feed_at, p.id LIMIT 1),
	(SELECT min(accepted_at) FROM (SELECT p.accepted_at` + sqlFirstPayouts + `'none'` + sqlFirstLimit + `) AS first),
	(SELECT p.feed_at` + sqlFirstPayouts + `'retry' ORDER BY p.feed_at, p.id LIMIT 1),
	(SELECT min(accepted_at) FROM (SELECT p.accepted_at` + sqlFirstPayouts + `'retry'` + sqlFirstLimit + `) AS first),
	(SELECT min(hint_due) FROM (SELECT p.hint_due` + sqlFirstPayouts + `'stream'` + sqlFirstLimit + `) AS first),
	(SELECT p.feed_at` + sqlFirstPayouts + `'stream' ORDER BY p.feed_at, p.id LIMIT 1)` + sqlUnfinishedFrom
)

// WaitTimes returns the age of the work of every promotion that Unfinished returns. It is one
// statement, whose cost depends on the number of promotions and not on that of the payouts.
func (l *Ledger) WaitTimes(ctx context.Context) ([]WaitTime, error) {
	return selectAll(ctx, l, "waiting payouts", func(r scanner, w *WaitTime, now time.Time) error {
		var due, accepted [3]time.Time // of each queue location; zero: it has no payout
		columns := w.columns()
		for i := range due {
			columns = append(columns, (*portable.Time)(&due[i]), (*portable.Time)(&accepted[i]))
		}
		if err := r.Scan(columns...); err != nil {
			return err
		}
		for i := range due {
			if due[i].IsZero() {
				continue
			}
			w.OldestUnpaid = max(w.OldestUnpaid, now.Sub(accepted[i]))
			if !w.WaitsForPlace {
				w.Overdue = max(w.Overdue, now.Sub(due[i]))
			}
		}
		return nil
	}, sqlWaitTimes)
}
