package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// The columns of the keys come out of a subquery with OFFSET 0. With parameters for the promotion,
// the planner would scan all of its payouts. The clock is read after the locks of the promotions.
const (
	// A payout before its first begin has no attempt, no possible charge and no due time.
	pgBeginOrdinary = `UPDATE payouts AS p SET state = 'SENDING', hint = 'retry', hint_due = c.now + $6 * interval '1 microsecond', version = p.version + 1,
	epoch = 1, attempts = 1, lease_until = c.now + $6 * interval '1 microsecond', first_sent_at = c.now, key_first_used_at = c.now,
	attempt_started_at = c.now, attempt_by = $7
FROM (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[]) WITH ORDINALITY AS k(type, promotion, target, request, n) OFFSET 0) AS k
CROSS JOIN (SELECT clock_timestamp() + $5 * interval '1 microsecond' AS now OFFSET 0) AS c
WHERE p.type = k.type AND p.promotion_id = k.promotion AND p.target_id = k.target
	AND p.state = 'PENDING' AND p.epoch = 0 AND NOT p.maybe_charged AND p.next_attempt_at IS NULL AND coalesce(p.request, p.payload) = k.request
	AND (SELECT g.state FROM promotions AS g WHERE g.type = k.type AND g.promotion_id = k.promotion) = 'RUNNING'
RETURNING k.n`

	pgSettleDone = `WITH done AS (UPDATE payouts AS p SET state = 'SUCCESS', settled_at = c.now, version = p.version + 1, lease_until = NULL,
	next_attempt_at = NULL, transaction_key = k.transaction_key, last_class = '', last_error = ''
FROM (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::int[]) WITH ORDINALITY
	AS k(type, promotion, target, epoch, transaction_key, class, answer, status, n) OFFSET 0) AS k
CROSS JOIN (SELECT clock_timestamp() + $9 * interval '1 microsecond' AS now OFFSET 0) AS c
WHERE p.type = k.type AND p.promotion_id = k.promotion AND p.target_id = k.target
	AND p.state = 'SENDING' AND p.epoch = k.epoch AND NOT p.asking
RETURNING k.n, k.class, k.answer, k.status, p.id, p.type, p.promotion_id, p.summary_id, p.epoch, p.attempts, p.attempt_by, p.attempt_started_at, p.settled_at),
`
	// Sessions with the same slot update the same row. PostgreSQL runs these statements last to
	// first.
	pgSettleCounted = `counted AS (INSERT INTO promotion_summary_slots AS s (type, promotion_id, summary_id, slot, paid)
	SELECT type, promotion_id, summary_id, ` + pgSlot + `, count(*) FROM done GROUP BY 1, 2, 3 ORDER BY type COLLATE "C", 2, 3
	ON CONFLICT (type, promotion_id, summary_id, slot) DO UPDATE SET paid = s.paid + excluded.paid),
`
	pgSettleEnded = `ended AS (INSERT INTO payout_attempts (payout_id, promotion_id, epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status)
	SELECT id, promotion_id, epoch, FALSE, attempts, 'send', attempt_by, attempt_started_at, settled_at, 'paid', class, answer, status FROM done
	ON CONFLICT (payout_id, epoch, late, promotion_id) DO NOTHING)
SELECT n, summary_id, attempts, settled_at FROM done`

	pgSettleOrdinary = pgSettleDone + pgSettleCounted + pgSettleEnded
	// With outcome events the summaries are written with the events, in the pipeline of the COMMIT.
	pgSettleUncounted = pgSettleDone + pgSettleEnded
)

func (s *postgres) beginOrdinary(ctx context.Context, records []*payouts.Record, p rules.Policy, started func(i int)) error {
	keys, requests := valuesOf(records, func(r *payouts.Record) payouts.Key { return r.Key }), valuesOf(records, (*payouts.Record).RequestToSend)
	types, promotions, targets := keyArrays(keys)
	return s.inOneTrip(ctx, func(b *pgx.Batch) {
		b.Queue(pgSharePromotionLocks, types, promotions)
		b.Queue(pgBeginOrdinary, types, promotions, targets, requests, s.skewMicros(), p.Lease.Microseconds(), p.Instance).Query(func(rows pgx.Rows) error {
			var n int
			_, err := pgx.ForEachRow(rows, []any{&n}, func() error { started(n - 1); return nil })
			return err
		})
	}, nil)
}

func (s *postgres) settleOrdinary(ctx context.Context, results []*payouts.CallResult, outcomeEvents bool, settled func(i int, row *storedRow)) error {
	types, promotions, targets := keyArrays(valuesOf(results, func(r *payouts.CallResult) payouts.Key { return r.Key }))
	sql := pgSettleOrdinary
	var effects *effectSet
	if outcomeEvents {
		sql = pgSettleUncounted
		effects = &effectSet{outcomeEvents: true, read: &readResult{}, writes: &writeSet{}}
	}
	return s.inOneTrip(ctx, func(b *pgx.Batch) {
		b.Queue(sql, types, promotions, targets,
			valuesOf(results, func(r *payouts.CallResult) int64 { return r.Epoch }),
			valuesOf(results, func(r *payouts.CallResult) string { return r.Receipt }),
			valuesOf(results, func(r *payouts.CallResult) string { return r.Class }),
			valuesOf(results, func(r *payouts.CallResult) string { return r.Answer }),
			valuesOf(results, func(r *payouts.CallResult) int { return r.Status }), s.skewMicros(),
		).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var n int
				row := &storedRow{Row: payouts.Row{Row: rules.Row{State: rules.Success}}}
				if err := rows.Scan(&n, &row.SummaryID, &row.Attempts, (*portable.Time)(&row.SettledAt)); err != nil {
					return err
				}
				row.Key, row.Receipt = results[n-1].Key, results[n-1].Receipt
				if effects != nil {
					effects.add(row, rules.Writes{Settled: true}, nil, "")
				}
				settled(n-1, row)
			}
			return rows.Err()
		})
	}, effects)
}

func (s *postgres) skewMicros() int64 { return time.Duration(s.skew.Load()).Microseconds() }

// inOneTrip runs a transaction in one round trip. With effects, which depend on its results, it
// takes a second one for their writes.
func (s *postgres) inOneTrip(ctx context.Context, queue func(b *pgx.Batch), effects *effectSet) error {
	conn, err := s.hot.Acquire(ctx)
	if err != nil {
		return err
	}
	tx := &pgTransaction{s: s, conn: conn}
	defer tx.rollback()
	var b pgx.Batch
	b.Queue(pgBegin)
	queue(&b)
	if effects == nil && !failpoint.Armed {
		return tx.end(ctx, &b)
	}
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	failpoint.Hit(failpoint.InTransaction)
	if effects == nil {
		return tx.commit(ctx, &writeSet{})
	}
	if err := effects.writeTo(ctx, tx); err != nil {
		return err
	}
	return tx.commit(ctx, effects.writes)
}
