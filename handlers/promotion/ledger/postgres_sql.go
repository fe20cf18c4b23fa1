package ledger

// The hot statements. Each has an EXPLAIN test on an empty, an un-analysed and a full table: rows are
// reached through a unique index, one probe a row, whatever the planner believes about the table.
// A join to a LATERAL subquery with OFFSET 0 or a locking clause can't be flattened, so its order is the array's.
const (
	// The gate of a promotion is an advisory lock with a key of its schema, type and number. Two promotions that share a key
	// only wait for each other's pause. The trigger promotions_gate makes the same key.
	pgGateKey = `hashtext(current_schema() || '/' || $1::text || '/' || $2::bigint)`

	// Every batch takes its gates in the order of their keys.
	pgGates = `SELECT pg_advisory_xact_lock_shared(1296650049, h) FROM (SELECT hashtext(current_schema() || '/' || k.type || '/' || k.id) AS h
	FROM unnest($1::text[], $2::bigint[]) AS k(type, id) GROUP BY 1 ORDER BY 1) AS gates`

	pgOldGate = `SELECT pg_advisory_xact_lock(1296650049, $1::int)`

	pgGate = `SELECT pg_advisory_xact_lock(1296650049, ` + pgGateKey + `)`

	pgReadPromotions = `SELECT p.type, p.promotion_id, p.state
FROM unnest($1::text[], $2::bigint[]) AS k(type, id)
CROSS JOIN LATERAL (SELECT * FROM promotions AS p
	WHERE p.type = k.type AND p.promotion_id = k.id OFFSET 0) AS p`

	pgAddPromotions = `INSERT INTO promotions (type, promotion_id, state, created_at, changed_at)
SELECT k.type, k.id, 'RUNNING', $3, $3 FROM unnest($1::text[], $2::bigint[]) AS k(type, id)
ON CONFLICT (type, promotion_id) DO NOTHING`

	pgRowColumns = `p.id, p.type, p.promotion_id, p.target_id, p.summary_id, p.state, p.hint, p.hint_due, p.version,
	p.epoch, p.attempts, p.asks, p.failures, p.interruptions, p.lease_until, p.next_attempt_at, p.first_sent_at,
	p.maybe_charged, p.asking, p.transaction_key, p.last_class, p.last_error, p.attempt_started_at, p.attempt_by,
	p.accepted_at, p.settled_at, p.released, p.key_first_used_at, p.no_charge_seen`

	pgBodyColumns = `p.payload, p.request, p.headers, p.record_key, p.origin`

	pgReadFrom = ` FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS k(type, promotion, target)
CROSS JOIN LATERAL (SELECT * FROM payouts AS p
	WHERE p.type = k.type AND p.promotion_id = k.promotion AND p.target_id = k.target `

	pgReadRows   = `SELECT ` + pgRowColumns + pgReadFrom + `OFFSET 0) AS p`
	pgReadBodies = `SELECT ` + pgRowColumns + `, ` + pgBodyColumns + pgReadFrom + `OFFSET 0) AS p`
	pgLockRows   = `SELECT ` + pgRowColumns + pgReadFrom + `FOR UPDATE) AS p`
	pgLockBodies = `SELECT ` + pgRowColumns + `, ` + pgBodyColumns + pgReadFrom + `FOR UPDATE) AS p`

	pgClock = `SELECT clock_timestamp()`

	pgInsertRows = `INSERT INTO payouts (type, promotion_id, target_id, summary_id, state, hint, hint_due, version,
	accepted_at, settled_at, payload, request, headers, record_key, origin)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::timestamptz[], $8::bigint[],
	$9::timestamptz[], $10::timestamptz[], $11::bytea[], $12::bytea[], $13::text[], $14::bytea[], $15::text[])
ON CONFLICT (type, promotion_id, target_id) DO NOTHING
RETURNING id, type, promotion_id, target_id`

	// The update of rows that were read without a lock: each must be the version that was followed by the
	// new one. ledger_stale_row raises pgStaleRow, and the complete pipeline fails, when one is not.
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

	pgBumpSummaries = `INSERT INTO promotion_summaries AS s (type, promotion_id, summary_id, paid, failed, unknown, cancelled)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
ON CONFLICT (type, promotion_id, summary_id) DO UPDATE SET paid = s.paid + excluded.paid, failed = s.failed + excluded.failed,
	unknown = s.unknown + excluded.unknown, cancelled = s.cancelled + excluded.cancelled`

	pgDeadBodies = `SELECT p.id, ` + pgBodyColumns + `, a.first
FROM unnest($1::bigint[]) AS k(id)
CROSS JOIN LATERAL (SELECT * FROM payouts AS p WHERE p.id = k.id OFFSET 0) AS p
CROSS JOIN LATERAL (SELECT min(ended_at) AS first FROM attempts WHERE payout_id = k.id) AS a`

	// settled_at IS NULL would offer the planner the index of unsettled payouts, which it takes on an empty table.
	pgMarkFed = `UPDATE payouts AS p SET hint = 'stream', hint_due = $3, version = p.version + 1
FROM unnest($1::bigint[], $2::bigint[]) AS u(id, seq)
WHERE p.id = u.id AND p.version = u.seq AND p.state IN ('PENDING', 'SENDING', 'ERROR', 'AMBIGUOUS')`

	// A row that a frozen instance has locked is left out: the other rows are marked without it.
	pgLockFed = `SELECT p.id FROM unnest($1::bigint[]) AS k(id)
CROSS JOIN LATERAL (SELECT id FROM payouts AS p WHERE p.id = k.id FOR UPDATE SKIP LOCKED) AS p`
)
