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

	pgBegin = `BEGIN ISOLATION LEVEL READ COMMITTED` // see readCommitted

	// pgConfirm writes a few bytes to the write-ahead log, in a transaction with an id. COMMIT then
	// waits for the synchronous standby, which has everything that was committed before. An id alone
	// (pg_current_xact_id) is not enough: without a record in the log PostgreSQL does not wait.
	// Logical decoding shows it as a message with the prefix millrace, which subscriptions ignore.
	pgConfirm = `SELECT pg_logical_emit_message(true, 'millrace', ''::text)`

	pgClock = `SELECT clock_timestamp()`

	pgSetLockTimeout = `SELECT set_config('lock_timeout', $1, true)`

	pgLockStream = `SELECT FROM promotion_streams WHERE type = $1 AND promotion_id = $2 FOR UPDATE`

	// Skips a row that a frozen instance has locked; the others are marked. There is no condition
	// on settled_at: on an empty table the planner would use the index of unsettled payouts.
	pgMarkEnqueued = `UPDATE payouts AS p SET hint = 'stream', hint_due = c.now, version = p.version + 1
FROM (SELECT l.* FROM (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS k(type, promotion, target, version) OFFSET 0) AS k
	CROSS JOIN LATERAL (SELECT o.type, o.promotion_id, o.target_id FROM payouts AS o
		WHERE o.type = k.type AND o.promotion_id = k.promotion AND o.target_id = k.target AND o.version = k.version FOR UPDATE SKIP LOCKED) AS l OFFSET 0) AS u
CROSS JOIN (SELECT clock_timestamp() + $7 * interval '1 microsecond' AS now OFFSET 0) AS c
WHERE p.type = u.type AND p.promotion_id = u.promotion_id AND p.target_id = u.target_id AND p.state IN ('PENDING', 'SENDING', 'ERROR', 'AMBIGUOUS')
	AND coalesce((SELECT s.incarnation FROM promotion_streams AS s WHERE s.type = $5 AND s.promotion_id = $6), '') = $8`
)

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	pgReadRows     = `SELECT ` + names(rowColumns, "p.") + pgReadFrom + `OFFSET 0) AS p`
	pgReadMessages = `SELECT ` + names(payoutColumns, "p.") + pgReadFrom + `OFFSET 0) AS p`
	pgLockRows     = `SELECT ` + names(rowColumns, "p.") + pgReadFrom + `FOR UPDATE) AS p`
	pgLockMessages = `SELECT ` + names(payoutColumns, "p.") + pgReadFrom + `FOR UPDATE) AS p`

	pgFailedMessages = `SELECT p.id, ` + names(messageColumns, "p.") + `, a.first
FROM unnest($1::bigint[]) AS k(id)
CROSS JOIN LATERAL (SELECT * FROM payouts AS p WHERE p.id = k.id OFFSET 0) AS p
CROSS JOIN LATERAL (SELECT min(ended_at) AS first FROM attempts WHERE payout_id = k.id) AS a`
)
