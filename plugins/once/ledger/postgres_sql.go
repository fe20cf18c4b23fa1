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

	// A claim does not wait for the lock of a group, because the process that pauses it may stand still. It is false, too, while
	// a pause waits for other claims.
	pgTryGroupLock = `pg_try_advisory_xact_lock_shared(` + pgGroupLockClass + `, hashtext(current_schema() || '/' || $1::bigint || '/' || grp))`

	pgTryKindLock = `SELECT ` + pgTryGroupLock + ` FROM (SELECT $2::text AS grp) AS pause`

	// Each batch takes its locks in the order of their keys.
	pgShareGroupLocks = `SELECT pg_advisory_xact_lock_shared(` + pgGroupLockClass + `, h) FROM (SELECT hashtext(current_schema() || '/' || k.kind || '/' || k.grp) AS h
	FROM unnest($1::bigint[], $2::text[]) AS k(kind, grp) GROUP BY 1 ORDER BY 1) AS locks`

	pgReadGroups = `SELECT g.kind, g.grp, g.state, g.parked FROM unnest($1::smallint[], $2::text[]) AS k(kind, grp)
CROSS JOIN LATERAL (SELECT * FROM once_groups AS g WHERE g.kind = k.kind AND g.grp = k.grp OFFSET 0) AS g`

	pgReadPaused = `SELECT EXISTS (SELECT 1 FROM once_paused WHERE kind = $1)`

	pgAddGroups = `INSERT INTO once_groups (kind, grp, state, created_at, changed_at)
SELECT k.kind, k.grp, 1, $3, $3 FROM unnest($1::smallint[], $2::text[]) AS k(kind, grp) ON CONFLICT (kind, grp) DO NOTHING`

	pgParkGroups = `UPDATE once_groups AS g SET parked = TRUE FROM (SELECT * FROM unnest($1::smallint[], $2::text[]) AS k(kind, grp) OFFSET 0) AS k
WHERE g.kind = k.kind AND g.grp = k.grp AND NOT g.parked`

	// Calls that were answered are left out: an EXISTS with OFFSET 0 is asked for each id, and never becomes a join that
	// reads a whole group.
	pgWaitingIDs = `CASE WHEN d.calling THEN coalesce((SELECT string_agg(i.id, chr(10)) FROM unnest(string_to_array(d.ids, chr(10))) AS i(id)
	WHERE EXISTS (SELECT 1 FROM once_effects AS e WHERE e.kind = d.kind AND e.grp = d.grp AND e.id = i.id AND e.due = d.number OFFSET 0)), '') ELSE d.ids END`

	// A volatile clock would be no condition of the index.
	pgDueOfLane = `d.lane = $2 AND d.at <= (SELECT clock_timestamp() + $4::bigint * interval '1 microsecond') AND d.number <> ALL ($5::bigint[])`

	pgLockDue = `WITH locked AS MATERIALIZED (SELECT d.number, d.grp, ` + pgWaitingIDs + ` AS ids
	FROM once_due AS d WHERE d.kind = $1 AND ` + pgDueOfLane + `
	ORDER BY d.at LIMIT $3 FOR UPDATE SKIP LOCKED)
SELECT number, grp, ids, ` + pgTryGroupLock + ` FROM locked`

	// An expression of the kind is a condition of the index of turns alone, which no statement may use in place of another one.
	pgAfter = ` FROM once_due AS d WHERE d.kind + 0 = $1 AND d.lane = $2 AND d.grp > `
	pgFirst = ` ORDER BY d.kind + 0, d.lane, d.grp, d.at LIMIT 1`

	// The groups after $6 in the order of their names, or from the first one on if there is none, of which it visits $7 with two
	// probes of the index each. It locks the oldest row that is due of each, until they have $3 ids. The last row has no number,
	// but the group that the next turn comes after, which is empty after the last group, and how many groups it has visited.
	pgLockTurn = `WITH RECURSIVE visited(grp, n) AS (
	SELECT coalesce((SELECT d.grp` + pgAfter + `$6` + pgFirst + `), (SELECT d.grp` + pgAfter + `''` + pgFirst + `)), 1
	UNION ALL
	SELECT (SELECT d.grp` + pgAfter + `v.grp` + pgFirst + `), v.n + 1 FROM visited AS v WHERE v.grp IS NOT NULL AND v.n < $7),
oldest AS (SELECT o.number, v.grp, o.ids, sum(o.ids) OVER (ORDER BY v.grp) AS total FROM visited AS v CROSS JOIN LATERAL (
	SELECT d.number, length(d.ids) - length(replace(d.ids, chr(10), '')) + 1 AS ids FROM once_due AS d WHERE d.kind + 0 = $1 AND ` + pgDueOfLane + ` AND d.grp = v.grp
	` + pgFirst + `) AS o),
chosen AS (SELECT number, grp, total FROM oldest WHERE total - ids < $3),
locked AS (SELECT d.number, d.grp, ` + pgWaitingIDs + ` AS ids FROM once_due AS d
	WHERE d.number = ANY (ARRAY(SELECT number FROM chosen)) AND d.at <= (SELECT clock_timestamp() + $4::bigint * interval '1 microsecond')
	ORDER BY d.grp FOR UPDATE SKIP LOCKED)
SELECT number, grp, ids, ` + pgTryGroupLock + ` FROM locked
UNION ALL
SELECT 0, CASE WHEN (SELECT max(total) FROM chosen) >= $3 THEN (SELECT max(grp) FROM chosen)
	WHEN (SELECT count(grp) FROM visited) = $7 THEN (SELECT max(grp) FROM visited) ELSE '' END, (SELECT count(grp) FROM visited)::text, TRUE`

	// A row of calls has another number than the one that they waited in. IS NOT DISTINCT FROM is a condition of no index.
	pgLockRows = `WITH locked AS MATERIALIZED (SELECT d.number, d.grp, d.ids FROM once_due AS d WHERE d.number = ANY ($2::bigint[]) AND d.kind IS NOT DISTINCT FROM $1
	AND d.at IS NOT NULL AND d.number <> ALL ($4::bigint[]) ORDER BY d.number LIMIT $3 FOR UPDATE SKIP LOCKED)
SELECT number, grp, ids, ` + pgTryGroupLock + ` FROM locked`

	pgAddDue = `INSERT INTO once_due (number, kind, lane, calling, at, grp, ids) VALUES ($1, $2, $3, $4, $5, $6, $7)`

	pgAddAllDue = `INSERT INTO once_due (number, kind, lane, calling, at, grp, ids)
SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::bool[], $5::timestamptz[], $6::text[], $7::text[])`

	pgShortenDue = `UPDATE once_due SET ids = $2 WHERE number = $1`

	pgParkDue = `UPDATE once_due SET at = NULL, ids = $2 WHERE number = $1`

	// A condition of the only index on the number has no other plan, also in a table that was empty when it was planned.
	pgDeleteDue = `DELETE FROM once_due WHERE number = ANY ($1::bigint[])`

	// A failover may have lost an answer that was committed. Then an effect still has the number.
	pgDeleteEndedDue = `DELETE FROM once_due AS d WHERE d.number = ANY ($1::bigint[]) AND NOT EXISTS (` + pgCallsOfDue + `)`

	pgCallsOfDue = `SELECT 1 FROM unnest(string_to_array(d.ids, chr(10))) AS i(id)
	JOIN LATERAL (SELECT e.due FROM once_effects AS e WHERE e.kind = d.kind AND e.grp = d.grp AND e.id = i.id OFFSET 0) AS e ON e.due = d.number`

	// Effects that are settled while they wait: by a cancellation, or by an operator. A row keeps at least one id.
	// Its ids are those after a wait for a claim.
	pgRemoveDue = `UPDATE once_due AS d SET ids = array_to_string(ARRAY(SELECT i.id FROM unnest(string_to_array(d.ids, chr(10))) AS i(id) WHERE i.id <> ALL ($2::text[])), chr(10))
WHERE d.number = $1 AND NOT string_to_array(d.ids, chr(10)) <@ $2::text[]`

	pgDeleteRemovedDue = `DELETE FROM once_due AS d WHERE d.number = $1 AND string_to_array(d.ids, chr(10)) <@ $2::text[]`

	pgUnsettled = `SELECT d.number::text, i.id FROM (SELECT number, ids FROM once_due WHERE kind = $1 AND grp = $2 AND number > coalesce(nullif($3, '')::bigint, 0)
	ORDER BY kind, grp, number LIMIT $4) AS d CROSS JOIN unnest(string_to_array(d.ids, chr(10))) AS i(id)`

	// Rows of calls that all were answered, when their leases have ended. No effect gets the number of a row later on.
	pgAnyEndedDue = `SELECT 1 FROM once_due AS d WHERE d.calling AND d.at <= $1 AND NOT EXISTS (` + pgCallsOfDue + `) LIMIT 1`

	pgForgetDue = `WITH ended AS MATERIALIZED (SELECT d.number FROM once_due AS d WHERE d.calling AND d.at <= $1 AND NOT EXISTS (` + pgCallsOfDue + `)
	LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM once_due WHERE number IN (SELECT number FROM ended)`

	pgReadFrom = ` FROM unnest($1::smallint[], $2::text[], $3::text[]) AS k(kind, grp, id)
CROSS JOIN LATERAL (SELECT * FROM once_effects AS p WHERE p.kind = k.kind AND p.grp = k.grp AND p.id = k.id `
)

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	// pgAccept inserts effects, those that are due, and what counts them. The parameter after the arrays is the number
	// of the deltas, and the last two are kinds with their graces. It returns the keys that are new.
	pgAccept = pgAcceptSQL("")

	// pgAcceptTold also inserts the results of effects that are settled at once, since their group is cancelled. The last
	// parameter has their kinds.
	pgAcceptTold = pgAcceptSQL(fmt.Sprintf(`,
told AS (INSERT INTO once_results (kind, grp, id, state, at, until, attempts)
	SELECT kind, grp, id, state, settled_at, settled_at, 0 FROM fresh WHERE settled_at IS NOT NULL AND kind = ANY ($%d::smallint[]))`, len(acceptColumns)+4))

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

// pgAcceptSQL is acceptSQL with arrays.
func pgAcceptSQL(more string) string {
	n := len(acceptColumns)
	grace := fmt.Sprintf(" + coalesce(($%[2]d::bigint[])[array_position($%[1]d::smallint[], kind)], 0) * interval '1 microsecond'", n+2, n+3)
	return acceptSQL("", "SELECT "+written(acceptColumns)+" FROM "+unnest(acceptColumns), fmt.Sprintf("$%d", n+1), grace, more)
}

// acceptSQL is the statement that accepts the rows of source. schema is empty or ends with a point, grace is added to
// the time of what may be called for at once, and more is what else is done with fresh rows.
func acceptSQL(schema, source, number, grace, more string) string {
	return `WITH fresh AS (INSERT INTO ` + schema + `once_effects (` + names(acceptColumns, "") + `) ` + source + `
	ON CONFLICT (kind, grp, id) DO NOTHING RETURNING kind, lane, due, state, accepted_at, next_attempt_at, settled_at, grp, id, part),
due AS (INSERT INTO ` + schema + `once_due (number, kind, lane, calling, at, grp, ids)
	SELECT due, kind, lane, FALSE, CASE WHEN next_attempt_at > accepted_at THEN next_attempt_at ELSE accepted_at` + grace + ` END, grp, string_agg(id, chr(10)) FROM fresh WHERE settled_at IS NULL GROUP BY 1, 2, 3, 5, 6),
counted AS (INSERT INTO ` + schema + `once_deltas (kind, grp, part, number, accepted, cancelled)
	SELECT kind, grp, coalesce(part, ''), ` + number + `::bigint, count(*), count(settled_at) FROM fresh GROUP BY 1, 2, 3)` + more + `
SELECT kind, grp, id FROM fresh`
}
