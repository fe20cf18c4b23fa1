package ledger

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// ListedPromotion is one promotion with the numbers of its payouts.
type ListedPromotion struct {
	payouts.Promotion
	State      rules.GroupState
	CreatedAt  time.Time     // zero: announced, and no record accepted yet
	ChangedFor time.Duration // since an operator changed the state; 0: nobody has
	TotalCount int64         // announced; 0: unknown
	PayoutCounts
}

const sqlNewest = `SELECT * FROM (SELECT type, promotion_id FROM `

const sqlNewestEnd = ` WHERE type = $1 ORDER BY promotion_id DESC LIMIT $2) AS newest`

const sqlOfListed = ` WHERE type = k.type AND promotion_id = k.promotion_id`

// The promotions are chosen first, and then the payouts of these alone are counted, each by an index
// probe. A promotion that was announced may have no row of promotions, and one whose stream never
// ran none of promotion_streams. The order of the pending payouts makes PostgreSQL read the index that
// has no settled ones.
const sqlList = `SELECT k.type, k.promotion_id,
	coalesce((SELECT state FROM promotions` + sqlOfListed + `), 'RUNNING'),
	(SELECT created_at FROM promotions` + sqlOfListed + `),
	(SELECT CASE WHEN changed_at > created_at THEN changed_at END FROM promotions` + sqlOfListed + `),
	coalesce((SELECT total_count FROM promotion_streams` + sqlOfListed + `), 0),
	(SELECT CAST(coalesce(sum(paid), 0) AS bigint) FROM promotion_summaries` + sqlOfListed + `),
	(SELECT CAST(coalesce(sum(failed), 0) AS bigint) FROM promotion_summaries` + sqlOfListed + `),
	(SELECT CAST(coalesce(sum(unknown), 0) AS bigint) FROM promotion_summaries` + sqlOfListed + `),
	(SELECT CAST(coalesce(sum(cancelled), 0) AS bigint) FROM promotion_summaries` + sqlOfListed + `),
	(SELECT count(*) FROM (SELECT feed FROM payouts` + sqlOfListed + ` AND settled_at IS NULL ORDER BY feed, feed_at, id) AS pending)
FROM (SELECT * FROM (` + sqlNewest + `promotions` + sqlNewestEnd + ` UNION ` + sqlNewest + `promotion_streams` + sqlNewestEnd + `) AS known
	ORDER BY promotion_id DESC LIMIT $2) AS k
ORDER BY k.promotion_id DESC`

// A loose index scan: one index probe for each type of each table.
const sqlTypes = `WITH RECURSIVE known(type) AS (SELECT min(type) FROM promotions
	UNION ALL SELECT (SELECT min(p.type) FROM promotions AS p WHERE p.type > k.type) FROM known AS k WHERE k.type IS NOT NULL),
streamed(type) AS (SELECT min(type) FROM promotion_streams
	UNION ALL SELECT (SELECT min(p.type) FROM promotion_streams AS p WHERE p.type > k.type) FROM streamed AS k WHERE k.type IS NOT NULL)
SELECT type FROM known WHERE type IS NOT NULL UNION SELECT type FROM streamed WHERE type IS NOT NULL`

// List returns the promotions of a type, the highest numbers first. An empty type means all types.
// The cost grows with limit and with the unsettled payouts of the promotions that are read, not with
// the number of promotions.
func (l *Ledger) List(ctx context.Context, t payouts.Type, limit int) ([]ListedPromotion, error) {
	var all []ListedPromotion
	err := l.read(ctx, "list promotions", func(q querier, now time.Time) error {
		types := []string{string(t)}
		if t == "" {
			types = nil
			if err := q.query(ctx, func(r scanner) error {
				types = append(types, "")
				return r.Scan(&types[len(types)-1])
			}, sqlTypes); err != nil {
				return err
			}
		}
		for _, t := range types {
			if err := q.query(ctx, func(r scanner) error {
				var p ListedPromotion
				var changed time.Time
				err := r.Scan((*string)(&p.Type), &p.ID, (*string)(&p.State), (*portable.Time)(&p.CreatedAt), (*portable.Time)(&changed), &p.TotalCount, &p.Paid, &p.Failed, &p.Unknown, &p.Cancelled, &p.Pending)
				if !changed.IsZero() {
					p.ChangedFor = now.Sub(changed)
				}
				p.sum()
				all = append(all, p)
				return err
			}, sqlList, t, limit); err != nil {
				return err
			}
		}
		return nil
	})
	sorted.By(all, func(a, b ListedPromotion) int {
		return cmp.Or(cmp.Compare(b.ID, a.ID), strings.Compare(string(a.Type), string(b.Type)))
	})
	return all[:min(len(all), limit)], err
}
