package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// ListedPromotion is one promotion with the numbers of its payouts.
type ListedPromotion struct {
	rules.Promotion
	State     rules.PromotionState
	CreatedAt time.Time // zero: announced, and no record accepted yet
	PayoutCounts
}

// The cost grows with the number of promotions and of unsettled payouts.
const sqlList = `SELECT k.type, k.promotion_id, coalesce(p.state, 'RUNNING'), p.created_at,
	coalesce(m.paid, 0), coalesce(m.failed, 0), coalesce(m.unknown, 0), coalesce(m.cancelled, 0), coalesce(u.pending, 0)
FROM (SELECT type, promotion_id FROM promotions UNION SELECT type, promotion_id FROM promotion_streams) AS k
LEFT JOIN promotions AS p ON p.type = k.type AND p.promotion_id = k.promotion_id
LEFT JOIN (SELECT type, promotion_id, CAST(sum(paid) AS bigint) AS paid, CAST(sum(failed) AS bigint) AS failed,
		CAST(sum(unknown) AS bigint) AS unknown, CAST(sum(cancelled) AS bigint) AS cancelled
	FROM promotion_summaries GROUP BY type, promotion_id) AS m ON m.type = k.type AND m.promotion_id = k.promotion_id
LEFT JOIN (SELECT type, promotion_id, count(*) AS pending FROM payouts WHERE settled_at IS NULL
	GROUP BY type, promotion_id) AS u ON u.type = k.type AND u.promotion_id = k.promotion_id
WHERE $1 = '' OR k.type = $1
ORDER BY k.promotion_id DESC, k.type LIMIT $2`

// List returns the promotions of a type, the highest numbers first. An empty type means all types.
func (l *Ledger) List(ctx context.Context, t rules.Type, limit int) ([]ListedPromotion, error) {
	return selectAll(ctx, l, "list promotions", func(r scanner, p *ListedPromotion, _ time.Time) error {
		err := r.Scan((*string)(&p.Type), &p.ID, (*string)(&p.State), (*sqldb.Time)(&p.CreatedAt), &p.Paid, &p.Failed, &p.Unknown, &p.Cancelled, &p.Pending)
		p.sum()
		return err
	}, sqlList, string(t), limit)
}
