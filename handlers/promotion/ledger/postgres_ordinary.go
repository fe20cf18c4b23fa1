package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/pipeline/failpoint"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// The columns of the keys come out of a subquery with OFFSET 0. With parameters for the promotion,
// the planner would scan all of its payouts. The clock is read once, after the locks of the
// promotions.
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

	// The summaries are last, because all batches update the same row.
	pgSettleOrdinary = `WITH done AS (UPDATE payouts AS p SET state = 'SUCCESS', settled_at = c.now, version = p.version + 1, lease_until = NULL,
	next_attempt_at = NULL, transaction_key = k.transaction_key, last_class = '', last_error = ''
FROM (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::int[]) WITH ORDINALITY
	AS k(type, promotion, target, epoch, transaction_key, class, answer, status, n) OFFSET 0) AS k
CROSS JOIN (SELECT clock_timestamp() + $9 * interval '1 microsecond' AS now OFFSET 0) AS c
WHERE p.type = k.type AND p.promotion_id = k.promotion AND p.target_id = k.target
	AND p.state = 'SENDING' AND p.epoch = k.epoch AND NOT p.asking
RETURNING k.n, k.class, k.answer, k.status, p.*),
ended AS (INSERT INTO attempts (payout_id, epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status)
	SELECT id, epoch, FALSE, attempts, 'send', attempt_by, attempt_started_at, settled_at, 'paid', class, answer, status FROM done
	ON CONFLICT (payout_id, epoch, late) DO NOTHING),
counted AS (INSERT INTO promotion_summaries AS s (type, promotion_id, summary_id, paid)
	SELECT type, promotion_id, summary_id, count(*) FROM done GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
	ON CONFLICT (type, promotion_id, summary_id) DO UPDATE SET paid = s.paid + excluded.paid)
SELECT n, summary_id, attempts, settled_at FROM done`
)

func (s *postgres) beginOrdinary(ctx context.Context, records []*rules.Record, p rules.Policy, started func(i int)) error {
	keys, requests := valuesOf(records, func(r *rules.Record) rules.Key { return r.Key }), valuesOf(records, (*rules.Record).RequestToSend)
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

func (s *postgres) settleOrdinary(ctx context.Context, results []*rules.CallResult, outcomeEvents bool, settled func(i int, row *storedRow)) error {
	types, promotions, targets := keyArrays(valuesOf(results, func(r *rules.CallResult) rules.Key { return r.Key }))
	var events []*outboxRow
	var complete func() *writeSet
	if outcomeEvents {
		complete = func() *writeSet { return &writeSet{outbox: events} }
	}
	return s.inOneTrip(ctx, func(b *pgx.Batch) {
		b.Queue(pgSettleOrdinary, types, promotions, targets,
			valuesOf(results, func(r *rules.CallResult) int64 { return r.Epoch }),
			valuesOf(results, func(r *rules.CallResult) string { return r.TransactionKey }),
			valuesOf(results, func(r *rules.CallResult) string { return r.Class }),
			valuesOf(results, func(r *rules.CallResult) string { return r.Answer }),
			valuesOf(results, func(r *rules.CallResult) int { return r.Status }), s.skewMicros(),
		).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var n int
				row := &storedRow{Row: rules.Row{State: rules.Success}}
				if err := rows.Scan(&n, &row.SummaryID, &row.Attempts, (*sqldb.Time)(&row.SettledAt)); err != nil {
					return err
				}
				row.Key, row.TransactionKey = results[n-1].Key, results[n-1].TransactionKey
				if outcomeEvents {
					events = append(events, outcomeEvent(row, row.SettledAt))
				}
				settled(n-1, row)
			}
			return rows.Err()
		})
	}, complete)
}

func (s *postgres) skewMicros() int64 { return time.Duration(s.skew.Load()).Microseconds() }

// inOneTrip runs a transaction in one round trip. With more it takes a second one, for the writes
// that depend on the first.
func (s *postgres) inOneTrip(ctx context.Context, queue func(b *pgx.Batch), more func() *writeSet) error {
	conn, err := s.hot.Acquire(ctx)
	if err != nil {
		return err
	}
	tx := &pgTransaction{s: s, conn: conn}
	defer tx.rollback()
	var b pgx.Batch
	b.Queue(pgBegin)
	queue(&b)
	if more == nil && !failpoint.Armed {
		return tx.end(ctx, &b)
	}
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	failpoint.Hit(failpoint.InTransaction)
	writes := &writeSet{}
	if more != nil {
		writes = more()
	}
	return tx.commit(ctx, writes)
}
