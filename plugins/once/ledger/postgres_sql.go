package ledger

import "fmt"

// The hot statements. The tests check their plans on an empty, an unanalysed and a full table: each
// row is one probe of an index. A join to a LATERAL subquery with OFFSET 0 or a locking clause can't
// be flattened, so it keeps the order of the array.
const (
	pgBegin = `BEGIN ISOLATION LEVEL READ COMMITTED` // a statement after a wait for a lock must see commits made during the wait

	pgClock = `SELECT clock_timestamp()`

	pgSetLockTimeout = `SELECT set_config('lock_timeout', $1, true)`

	// pgConfirm writes a few bytes to the write-ahead log, in a transaction with an id. COMMIT then
	// waits for the synchronous standby, which has everything that was committed before. An id alone
	// (pg_current_xact_id) is not enough: without a record in the log PostgreSQL does not wait.
	// Logical decoding shows it as a message with the prefix millrace, which subscriptions ignore.
	pgConfirm = `SELECT pg_logical_emit_message(true, 'millrace', ''::text)`

	// The advisory lock of a group has a key of its schema, kind and name. Two groups with the same
	// key only wait for the pause of each other.
	pgGroupLockClass = `1296650056`

	pgGroupLock = `SELECT pg_advisory_xact_lock(` + pgGroupLockClass + `, hashtext(current_schema() || '/' || $1::bigint || '/' || $2::text))`

	// Each batch takes its locks in the order of their keys.
	pgShareGroupLocks = `SELECT pg_advisory_xact_lock_shared(` + pgGroupLockClass + `, h) FROM (SELECT hashtext(current_schema() || '/' || k.kind || '/' || k.grp) AS h
	FROM unnest($1::bigint[], $2::text[]) AS k(kind, grp) GROUP BY 1 ORDER BY 1) AS locks`

	pgReadGroups = `SELECT g.kind, g.grp, g.state, g.parked FROM unnest($1::smallint[], $2::text[]) AS k(kind, grp)
CROSS JOIN LATERAL (SELECT * FROM once_groups AS g WHERE g.kind = k.kind AND g.grp = k.grp OFFSET 0) AS g`

	pgAddGroups = `INSERT INTO once_groups (kind, grp, state, created_at, changed_at)
SELECT k.kind, k.grp, 1, $3, $3 FROM unnest($1::smallint[], $2::text[]) AS k(kind, grp) ON CONFLICT (kind, grp) DO NOTHING`

	pgParkGroups = `UPDATE once_groups AS g SET parked = TRUE FROM (SELECT * FROM unnest($1::smallint[], $2::text[]) AS k(kind, grp) OFFSET 0) AS k
WHERE g.kind = k.kind AND g.grp = k.grp AND NOT g.parked`

	// A volatile clock would be no condition of the index.
	pgLockDue = `SELECT d.grp, d.id FROM once_due AS d
WHERE d.kind = $1 AND d.lane = $2 AND d.at <= (SELECT clock_timestamp() + $4::bigint * interval '1 microsecond')
ORDER BY d.at LIMIT $3 FOR UPDATE SKIP LOCKED`

	pgReadFrom = ` FROM unnest($1::smallint[], $2::text[], $3::text[]) AS k(kind, grp, id)
CROSS JOIN LATERAL (SELECT * FROM once_effects AS p WHERE p.kind = k.kind AND p.grp = k.grp AND p.id = k.id `
)

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	// pgAccept inserts effects, those that are due, and what counts them. The parameter after the arrays is the number
	// of the deltas. It returns the keys that are new.
	pgAccept = acceptSQL("", "SELECT "+written(acceptColumns)+" FROM "+unnest(acceptColumns), fmt.Sprintf("$%d", len(acceptColumns)+1))

	// pgReadEffects are the statements that read effects, by lock and with or without messages.
	pgReadEffects = map[rowLock]map[bool]string{
		lockNone: {false: pgReadSQL(rowColumns, "OFFSET 0"), true: pgReadSQL(effectColumns, "OFFSET 0")},
		lockWait: {false: pgReadSQL(rowColumns, "FOR UPDATE"), true: pgReadSQL(effectColumns, "FOR UPDATE")},
		lockSkip: {false: pgReadSQL(rowColumns, "FOR UPDATE SKIP LOCKED"), true: pgReadSQL(effectColumns, "FOR UPDATE SKIP LOCKED")},
	}
)

func pgReadSQL(columns []column[storedRow], clause string) string {
	return `SELECT ` + reads(columns, "p.") + pgReadFrom + clause + `) AS p`
}

// acceptSQL is the statement that accepts the rows of source. schema is empty or ends with a point.
func acceptSQL(schema, source, number string) string {
	return `WITH fresh AS (INSERT INTO ` + schema + `once_effects (` + names(acceptColumns, "") + `) ` + source + `
	ON CONFLICT (kind, grp, id) DO NOTHING RETURNING kind, lane, accepted_at, next_attempt_at, settled_at, grp, id, part),
due AS (INSERT INTO ` + schema + `once_due (kind, lane, calling, at, grp, id)
	SELECT kind, lane, FALSE, greatest(accepted_at, next_attempt_at), grp, id FROM fresh WHERE settled_at IS NULL),
counted AS (INSERT INTO ` + schema + `once_deltas (kind, grp, part, number, accepted, cancelled)
	SELECT kind, grp, coalesce(part, ''), ` + number + `::bigint, count(*), count(settled_at) FROM fresh GROUP BY 1, 2, 3)
SELECT kind, grp, id FROM fresh`
}
