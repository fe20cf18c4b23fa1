package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// Summary has the settled payouts of one summary of a promotion.
type Summary struct {
	ID                               int64
	Paid, Failed, Unknown, Cancelled int64
}

// Summaries returns the settled payouts of a promotion by summary, in the order of their ids and at most limit of
// them. Its cost depends on the number of summaries.
func (l *Ledger) Summaries(ctx context.Context, p payouts.Promotion, limit int) ([]Summary, error) {
	var all []Summary
	err := l.read(ctx, "summaries", func(q querier, _ time.Time) error {
		all = nil
		return q.query(ctx, func(r scanner) error {
			var s Summary
			err := r.Scan(&s.ID, &s.Paid, &s.Failed, &s.Unknown, &s.Cancelled)
			all = append(all, s)
			return err
		}, `SELECT summary_id, CAST(sum(paid) AS bigint), CAST(sum(failed) AS bigint), CAST(sum(unknown) AS bigint), CAST(sum(cancelled) AS bigint)
			FROM promotion_summaries WHERE type = $1 AND promotion_id = $2 GROUP BY summary_id ORDER BY summary_id LIMIT $3`,
			string(p.Type), p.ID, limit)
	})
	return all, err
}
