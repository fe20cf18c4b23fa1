package ledger

import (
	"context"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// A row is locked until the commit that changed it is on disk, so all settles of a promotion would
// wait for each other if they changed one row. Each session therefore counts into a row of its own
// slot, and a summary is the sum of its row in promotion_summaries and of its slots:
// docs/decisions/0031-summary-slots.md.
const (
	// Sessions with the same slot only wait for each other. At most 256 rows per summary exist.
	pgSlot = `pg_backend_pid() % 256`

	pgSlotConflict = ` ON CONFLICT (type, promotion_id, summary_id, slot) DO UPDATE SET paid = s.paid + excluded.paid, failed = s.failed + excluded.failed,
	unknown = s.unknown + excluded.unknown, cancelled = s.cancelled + excluded.cancelled`

	// Leaves out a slot whose session is in a transaction: it is folded the next time.
	pgFoldSummaries = `WITH free AS (SELECT type, promotion_id, summary_id, slot FROM promotion_summary_slots
	WHERE type = $1 AND promotion_id = $2 FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM promotion_summary_slots AS d USING free AS f
	WHERE d.type = f.type AND d.promotion_id = f.promotion_id AND d.summary_id = f.summary_id AND d.slot = f.slot RETURNING d.*)
INSERT INTO promotion_summaries AS s (type, promotion_id, summary_id, paid, failed, unknown, cancelled)
SELECT type, promotion_id, summary_id, sum(paid), sum(failed), sum(unknown), sum(cancelled) FROM gone GROUP BY 1, 2, 3 ORDER BY 3
ON CONFLICT (type, promotion_id, summary_id) DO UPDATE SET paid = s.paid + excluded.paid, failed = s.failed + excluded.failed,
	unknown = s.unknown + excluded.unknown, cancelled = s.cancelled + excluded.cancelled`

	// Between a migration and the GRANTs of its version, the role of the service has no right to
	// delete.
	pgMayFold = `SELECT has_table_privilege('promotion_summary_slots', 'DELETE')`
)

// pgAddToSummaries adds the deltas of a write set to the slots of the session.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var pgAddToSummaries = func() string {
	columns := names(addToSummaries.columns, "")
	return "INSERT INTO promotion_summary_slots AS s (" + columns + ", slot) SELECT u.*, " + pgSlot + " FROM " + unnest(addToSummaries.columns) + " AS u" + pgSlotConflict
}()

// foldSummaries implements summaryFolder.
func (*postgres) foldSummaries(ctx context.Context, q querier, p payouts.Promotion) error {
	may := false
	if err := q.query(ctx, func(r scanner) error { return r.Scan(&may) }, pgMayFold); err != nil || !may {
		return err
	}
	_, err := q.exec(ctx, pgFoldSummaries, string(p.Type), p.ID)
	return err
}

var _ summaryFolder = (*postgres)(nil)
