package ledger

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Keys come out of a subquery with OFFSET 0, because with a parameter for the group the planner might read all of it.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var (
	// The locks of the groups and of the kind's pause were taken by statements before, so nothing is paused after the states
	// were read. An effect that another transaction has locked has an xmax: a begin must not wait for one, see the
	// package comment.
	pgBeginFast = `WITH c AS MATERIALIZED (SELECT clock_timestamp() + $6::bigint * interval '1 microsecond' AS now,
	ARRAY(SELECT (SELECT g.state FROM once_groups AS g WHERE g.kind = $1 AND g.grp = k.grp) FROM unnest($2::text[]) AS k(grp)) AS states,
	EXISTS (SELECT 1 FROM once_paused WHERE kind = $1) AS paused)
UPDATE once_effects AS p SET due = u.due, state = $12, epoch = $7, attempts = $8, lease_until = c.now + $9::bigint * interval '1 microsecond', first_sent_at = c.now,
	key_first_used_at = c.now, attempt_started_at = c.now, attempt_by = $10, next_attempt_at = NULL
FROM c CROSS JOIN (SELECT $1::smallint AS kind, ($2::text[])[k.g] AS grp, k.* FROM unnest($3::int[], $4::text[], $5::bigint[], $13::bigint[]) WITH ORDINALITY AS k(g, id, was, due, n) OFFSET 0) AS u
WHERE ` + sameKey(keyColumns) + ` AND p.due = u.was AND NOT c.paused AND coalesce(c.states[u.g], 1) = 1 AND p.xmax = '0'::xid
	AND p.state = 1 AND p.epoch IS NULL AND p.accepted_at >= $11 AND (p.next_attempt_at IS NULL OR p.next_attempt_at <= c.now)
	AND p.attempts IS NULL AND p.released IS NULL AND p.looking_up IS NULL AND p.first_sent_at IS NULL AND p.key_first_used_at IS NULL AND p.last_sent_at IS NULL
RETURNING u.n, c.now, c.states[u.g] IS NOT NULL, p.accepted_at, ` + reads(messageColumns, "p.")

	pgSettleFast = settleFastSQL("", "")

	// pgSettleFastTold also inserts the results of the kinds in the last parameter.
	pgSettleFastTold = settleFastSQL(", p.id, p.settled_at, p.attempts, p.receipt", `,
told AS (INSERT INTO once_results (kind, grp, id, state, at, until, attempts, receipt)
	SELECT kind, grp, id, $7, settled_at, settled_at, coalesce(attempts, 0), receipt FROM done WHERE kind = ANY ($10::smallint[]))`)
)

// settleFastSQL is the statement that settles. It returns more columns to what else is done with the effects.
func settleFastSQL(columns, more string) string {
	return `WITH done AS (UPDATE once_effects AS p SET due = NULL, state = $7, settled_at = (SELECT clock_timestamp() + $6::bigint * interval '1 microsecond'),
	lease_until = NULL, status = nullif(u.status, 0), receipt = nullif(u.receipt, '')
FROM (SELECT * FROM unnest($1::smallint[], $2::text[], $3::text[], $4::smallint[], $5::text[], $9::bigint[]) WITH ORDINALITY AS k(kind, grp, id, status, receipt, epoch, n) OFFSET 0) AS u
WHERE ` + sameKey(keyColumns) + ` AND p.state = 2 AND p.epoch = u.epoch
	AND p.looking_up IS NULL AND p.next_attempt_at IS NULL AND p.last_class IS NULL AND p.last_error IS NULL
RETURNING u.n, p.kind, p.grp, p.part` + columns + `),
counted AS (INSERT INTO once_deltas (kind, grp, part, number, done) SELECT kind, grp, coalesce(part, ''), $8, count(*) FROM done GROUP BY 1, 2, 3)` + more + `
SELECT n FROM done`
}

// beginFast begins those of the effects of w, all of one kind, that have only been accepted. It removes them from w.
func (tx *pgTransaction) beginFast(ctx context.Context, w *readRequest, b fastBegin, read *readResult) error {
	place, names, due := make(map[string]int, len(w.groups)), make([]string, len(w.groups)), make([]int64, len(w.groups))
	for i, g := range w.groups {
		place[g.name], names[i], due[i] = i, g.name, newDueNumber()
	}
	groups, ids, was, numbers := make([]int, len(w.keys)), make([]string, len(w.keys)), make([]int64, len(w.keys)), make([]int64, len(w.keys))
	for i, k := range w.keys {
		at := place[k.group]
		groups[i], ids[i], was[i], numbers[i] = at+1, k.id, tx.dueOf[k], due[at]
	}
	kind := w.groups[0].kind
	begun := make([]bool, len(w.keys))
	var batch pgx.Batch
	batch.Queue(pgBeginFast, kind, names, groups, ids, was, tx.s.skewMicros(), b.epoch, b.attempts, b.lease.Microseconds(), b.by, b.after, effectCode(rules.Sending), numbers).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var n int
			var known bool
			r := &storedRow{}
			dest := append([]any{&n, (*portable.Time)(&read.now), &known, (*portable.Time)(&r.AcceptedAt)}, destinations(r, messageColumns)...)
			if err := rows.Scan(dest...); err != nil {
				return err
			}
			n--
			begun[n] = true
			r.rowKey, r.lane, r.due = w.keys[n], laneOf(w.keys[n].group), was[n]
			r.Row = b.row(r.AcceptedAt, read.now)
			r.remember()
			r.Row, r.began = fresh(r.AcceptedAt), read.now
			read.rows[r.rowKey], tx.begun[r.rowKey] = r, numbers[n]
			if g := r.of(); known {
				read.groups[g] = groupRow{state: rules.GroupRunning}
			}
		}
		return rows.Err()
	})
	if err := tx.conn.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	tx.now = read.now
	w.keys = slices.DeleteFunc(w.keys, func(k rowKey) bool { _, ok := tx.begun[k]; return ok })
	return nil
}

// settleFast stores the answers in a transaction of one round trip. It returns which of them it has stored.
func (s *postgres) settleFast(ctx context.Context, ends []*settleItem, wait time.Duration) (settled []bool, err error) {
	conn, err := s.hot.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	tx := &pgTransaction{s: s, conn: conn}
	defer tx.rollback()
	settled = make([]bool, len(ends))
	var b pgx.Batch
	b.Queue(pgBegin)
	if wait > 0 {
		b.Queue(pgSetLockTimeout, strconv.FormatInt(wait.Milliseconds(), 10))
	}
	kinds, groups, ids := keyArrays(valuesOf(ends, func(i *settleItem) rowKey { return i.key }))
	sql, args := pgSettleFast, []any{kinds, groups, ids, valuesOf(ends, func(i *settleItem) int { return i.end.Status }), valuesOf(ends, func(i *settleItem) string { return i.end.Receipt }),
		s.skewMicros(), effectCode(rules.Success), randomNumber(), valuesOf(ends, func(i *settleItem) int64 { return i.end.Epoch })}
	if told := kindsWhere(ends, func(i *settleItem) (kind int64, ok bool) { return i.key.kind, i.kind.Results }); len(told) > 0 {
		sql, args = pgSettleFastTold, append(args, told)
	}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		var n int
		_, err := pgx.ForEachRow(rows, []any{&n}, func() error { settled[n-1] = true; return nil })
		return err
	})
	if failpoint.Armed {
		if err := conn.SendBatch(ctx, &b).Close(); err != nil {
			return nil, err
		}
		failpoint.Hit(failpoint.InTransaction)
		b = pgx.Batch{}
	}
	// Whether all are stored is known after the commit. The statement deletes no row that has a call.
	c := &dueChanges{ended: s.batches.of(ends, nil)}
	if c.complete = s.batches.complete(c.ended); len(c.complete) > 0 {
		slices.Sort(c.complete)
		b.Queue(pgDeleteEndedDue, c.complete)
	}
	if err := tx.end(ctx, &b); err != nil {
		return nil, err
	}
	c.ended = s.batches.of(ends, settled)
	s.batches.committed(c, time.Time{})
	return settled, nil
}
