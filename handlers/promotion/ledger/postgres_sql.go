package ledger

// The statements for payouts. The tests check their plans on an empty, an unanalysed and a full
// table: each row is one probe of a unique index. A join to a LATERAL subquery with OFFSET 0 or a
// locking clause can't be flattened, so it keeps the order of the array.
const (
	// The advisory lock of a promotion has a key of its schema, type and number. Two promotions
	// with the same key only wait for the pause of each other. The trigger promotions_gate uses the
	// same key.
	pgPromotionLockKey = `hashtext(current_schema() || '/' || $1::text || '/' || $2::bigint)`

	// Each batch takes its locks in the order of their keys.
	pgSharePromotionLocks = `SELECT pg_advisory_xact_lock_shared(1296650049, h) FROM (SELECT hashtext(current_schema() || '/' || k.type || '/' || k.id) AS h
	FROM unnest($1::text[], $2::bigint[]) AS k(type, id) GROUP BY 1 ORDER BY 1) AS gates`

	pgOldPromotionLock = `SELECT pg_advisory_xact_lock(1296650049, $1::int)`

	pgPromotionLock = `SELECT pg_advisory_xact_lock(1296650049, ` + pgPromotionLockKey + `)`

	pgReadPromotions = `SELECT p.type, p.promotion_id, p.state
FROM unnest($1::text[], $2::bigint[]) AS k(type, id)
CROSS JOIN LATERAL (SELECT * FROM promotions AS p
	WHERE p.type = k.type AND p.promotion_id = k.id OFFSET 0) AS p`

	pgAddPromotions = `INSERT INTO promotions (type, promotion_id, state, created_at, changed_at)
SELECT k.type, k.id, 'RUNNING', $3, $3 FROM unnest($1::text[], $2::bigint[]) AS k(type, id)
ON CONFLICT (type, promotion_id) DO NOTHING`

	pgReadFrom = ` FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS k(type, promotion, target)
CROSS JOIN LATERAL (SELECT * FROM payouts AS p
	WHERE p.type = k.type AND p.promotion_id = k.promotion AND p.target_id = k.target `

	pgReadRows     = `SELECT ` + rowColumns + pgReadFrom + `OFFSET 0) AS p`
	pgReadMessages = `SELECT ` + rowColumns + `, ` + messageColumns + pgReadFrom + `OFFSET 0) AS p`
	pgLockRows     = `SELECT ` + rowColumns + pgReadFrom + `FOR UPDATE) AS p`
	pgLockMessages = `SELECT ` + rowColumns + `, ` + messageColumns + pgReadFrom + `FOR UPDATE) AS p`

	pgClock = `SELECT clock_timestamp()`

	pgInsertRows = `INSERT INTO payouts (type, promotion_id, target_id, summary_id, state, hint, hint_due, version,
	accepted_at, settled_at, payload, request, headers, record_key, origin)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::timestamptz[], $8::bigint[],
	$9::timestamptz[], $10::timestamptz[], $11::bytea[], $12::bytea[], $13::text[], $14::bytea[], $15::text[])
ON CONFLICT (type, promotion_id, target_id) DO NOTHING
RETURNING id, type, promotion_id, target_id`

	// Updates rows that were read without a lock. If a row no longer has the version that was read,
	// ledger_stale_row raises pgStaleRow, and the complete pipeline fails.
	pgUpdateRows = `WITH done AS (UPDATE payouts AS p SET state = u.state, hint = u.hint, hint_due = u.hint_due, version = u.version,
	epoch = u.epoch, attempts = u.attempts, asks = u.asks, failures = u.failures, interruptions = u.interruptions,
	lease_until = u.lease_until, next_attempt_at = u.next_attempt_at, first_sent_at = u.first_sent_at,
	maybe_charged = u.maybe_charged, asking = u.asking, transaction_key = u.transaction_key, last_class = u.last_class,
	last_error = u.last_error, attempt_started_at = u.attempt_started_at, attempt_by = u.attempt_by, settled_at = u.settled_at,
	released = u.released, key_first_used_at = u.key_first_used_at, no_charge_seen = u.no_charge_seen
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::timestamptz[], $5::bigint[], $6::bigint[], $7::int[], $8::int[], $9::int[], $10::int[],
	$11::timestamptz[], $12::timestamptz[], $13::timestamptz[], $14::bool[], $15::bool[], $16::text[], $17::text[], $18::text[],
	$19::timestamptz[], $20::text[], $21::timestamptz[], $22::int[], $23::timestamptz[], $24::bool[])
	AS u(id, state, hint, hint_due, version, epoch, attempts, asks, failures, interruptions, lease_until, next_attempt_at,
	first_sent_at, maybe_charged, asking, transaction_key, last_class, last_error, attempt_started_at, attempt_by, settled_at,
	released, key_first_used_at, no_charge_seen)
WHERE p.id = u.id AND p.version = u.version - 1 RETURNING 1)
SELECT CASE WHEN count(*) = $25 THEN 1 ELSE ledger_stale_row() END FROM done`

	pgInsertAttempts = `INSERT INTO attempts (payout_id, epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bool[], $4::int[], $5::text[], $6::text[], $7::timestamptz[], $8::timestamptz[],
	$9::text[], $10::text[], $11::text[], $12::int[])
ON CONFLICT (payout_id, epoch, late) DO NOTHING`

	pgInsertOutbox = `INSERT INTO outbox (kind, type, promotion_id, target_id, class, error, payload, headers, record_key, origin, handler,
	attempts, first_failed_at, created_at, dedupe)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::bytea[],
	$10::text[], $11::text[], $12::int[], $13::timestamptz[], $14::timestamptz[], $15::text[])
ON CONFLICT (dedupe) DO NOTHING`

	pgAddToSummaries = `INSERT INTO promotion_summaries AS s (type, promotion_id, summary_id, paid, failed, unknown, cancelled)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
ON CONFLICT (type, promotion_id, summary_id) DO UPDATE SET paid = s.paid + excluded.paid, failed = s.failed + excluded.failed,
	unknown = s.unknown + excluded.unknown, cancelled = s.cancelled + excluded.cancelled`

	pgFailedMessages = `SELECT p.id, ` + messageColumns + `, a.first
FROM unnest($1::bigint[]) AS k(id)
CROSS JOIN LATERAL (SELECT * FROM payouts AS p WHERE p.id = k.id OFFSET 0) AS p
CROSS JOIN LATERAL (SELECT min(ended_at) AS first FROM attempts WHERE payout_id = k.id) AS a`

	// No condition on settled_at: on an empty table the planner would use the index of unsettled
	// payouts.
	pgMarkEnqueued = `UPDATE payouts AS p SET hint = 'stream', hint_due = $3, version = p.version + 1
FROM unnest($1::bigint[], $2::bigint[]) AS u(id, seq)
WHERE p.id = u.id AND p.version = u.seq AND p.state IN ('PENDING', 'SENDING', 'ERROR', 'AMBIGUOUS')`

	// Skips a row that a frozen instance has locked; the others are marked.
	pgLockEnqueued = `SELECT p.id FROM unnest($1::bigint[]) AS k(id)
CROSS JOIN LATERAL (SELECT id FROM payouts AS p WHERE p.id = k.id FOR UPDATE SKIP LOCKED) AS p`
)
