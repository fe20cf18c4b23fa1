package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// Totals are the settled payouts of all promotions of a type.
type Totals struct {
	Type                             payouts.Type
	Paid, Failed, Unknown, Cancelled int64
}

// Totals counts the settled payouts of every type, from the summaries. Its cost depends on the
// number of promotions. A type without a settled payout may be missing.
func (l *Ledger) Totals(ctx context.Context) ([]Totals, error) {
	return selectAll(ctx, l, "totals", func(r scanner, t *Totals, _ time.Time) error {
		return r.Scan((*string)(&t.Type), &t.Paid, &t.Failed, &t.Unknown, &t.Cancelled)
	}, `SELECT type, CAST(sum(paid) AS bigint), CAST(sum(failed) AS bigint), CAST(sum(unknown) AS bigint), CAST(sum(cancelled) AS bigint)
		FROM promotion_summaries GROUP BY type ORDER BY type`)
}
