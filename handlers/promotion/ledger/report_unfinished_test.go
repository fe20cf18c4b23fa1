package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// countingStore counts the statements of reads.
type countingStore struct {
	store
	statements int
}

func (s *countingStore) read(ctx context.Context, fn func(querier, time.Time) error) error {
	return s.store.read(ctx, func(q querier, now time.Time) error { return fn(countingQuerier{q, &s.statements}, now) })
}

type countingQuerier struct {
	querier
	statements *int
}

func (q countingQuerier) query(ctx context.Context, row func(scanner) error, sql string, args ...any) error {
	*q.statements++
	return q.querier.query(ctx, row, sql, args...)
}

// manyPromotions creates promotions with an unsettled payout in each queue location.
func manyPromotions(t *testing.T, l *Ledger, first, last int) {
	t.Helper()
	require.NoError(t, l.store.update(t.Context(), nil, func(q querier, now time.Time) error {
		_, err := q.exec(t.Context(), `INSERT INTO payouts (type, promotion_id, target_id, summary_id, state, hint, hint_due, version, accepted_at, payload)
			WITH RECURSIVE n(i) AS (SELECT CAST($2 AS bigint) UNION ALL SELECT i + 1 FROM n WHERE i < CAST($3 AS bigint))
			SELECT 'POINT', i, t.id, 9, 'PENDING', t.hint, $1, 1, $1, 'x' FROM n
			CROSS JOIN (SELECT 1 AS id, 'none' AS hint UNION ALL SELECT 2, 'stream' UNION ALL SELECT 3, 'retry') AS t`, now, first, last)
		return err
	}))
}

// The number of statements of a measurement does not depend on the number of promotions.
func TestAMeasurementIsAFixedNumberOfStatements(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		counting := &countingStore{store: l.store}
		l.store = counting
		created := 0
		for _, n := range []int{10, 1000} {
			manyPromotions(t, l, created+1, n)
			created = n
			h.advance(time.Minute)
			counting.statements = 0
			waiting, err := l.WaitTimes(t.Context())
			require.NoError(t, err)
			require.Len(t, waiting, n)
			for _, w := range waiting {
				require.GreaterOrEqual(t, w.OldestUnpaid, time.Minute)
				require.GreaterOrEqual(t, w.Overdue, time.Minute)
			}
			require.Equal(t, 1, counting.statements)
		}
	})
}

// The due time and the age are those of the first payouts of each queue location.
func TestWaitTimesOfEachQueueLocation(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		for i, location := range []string{"none", "stream", "retry"} {
			p := int64(i + 1)
			acceptMany(t, l, p, 3)
			require.NoError(t, l.store.update(t.Context(), nil, func(q querier, now time.Time) error {
				// The second target is the oldest, and the third is due first.
				for target, ago := range []struct{ accepted, due time.Duration }{{20 * time.Minute, time.Minute}, {60 * time.Minute, 2 * time.Minute}, {50 * time.Minute, 30 * time.Minute}} {
					if _, err := q.exec(t.Context(), `UPDATE payouts SET hint = $1, accepted_at = $2, hint_due = $3 WHERE promotion_id = $4 AND target_id = $5`,
						location, now.Add(-ago.accepted), now.Add(-ago.due), p, target+1); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		waiting, err := l.WaitTimes(t.Context())
		require.NoError(t, err)
		require.Len(t, waiting, 3)
		for _, w := range waiting {
			require.InDelta(t, 60, w.OldestUnpaid.Minutes(), 1, "%s", w.Promotion)
			require.InDelta(t, 30, w.Overdue.Minutes(), 1, "%s", w.Promotion)
		}
	})
}
