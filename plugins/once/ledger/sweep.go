package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

const (
	foldChunk   = 2000
	unparkChunk = 500
	unparkList  = 100 // groups per statement
)

// The counts of once_deltas and once_totals.
func countColumns() []string { return []string{"accepted", "done", "failed", "unknown", "cancelled"} }

func eachCount(separator string, text func(c string) string) string {
	var parts []string
	for _, c := range countColumns() {
		parts = append(parts, text(c))
	}
	return strings.Join(parts, separator)
}

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	sumCounts = eachCount(", ", func(c string) string { return "CAST(sum(" + c + ") AS bigint)" })
	addCounts = ` ON CONFLICT (kind, grp, part) DO UPDATE SET ` + eachCount(", ", func(c string) string { return c + " = t." + c + " + excluded." + c })

	intoTotals = `INSERT INTO once_totals AS t (kind, grp, part, ` + strings.Join(countColumns(), ", ") + `) `

	// pgFold moves deltas into totals, those of the group and those of its kind, so that each counts
	// once. It creates the row of a group that no claim has met yet.
	pgFold = `WITH k AS MATERIALIZED (SELECT kind, grp, part, number FROM once_deltas ORDER BY kind, grp, part, number LIMIT $1 FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM once_deltas AS d USING k
	WHERE d.kind = k.kind AND d.grp = k.grp AND d.part = k.part AND d.number = k.number RETURNING d.*),
found AS (INSERT INTO once_groups (kind, grp, state, created_at, changed_at)
	SELECT DISTINCT kind, grp, 1, $2::timestamptz, $2::timestamptz FROM gone WHERE accepted > 0 ORDER BY kind, grp ON CONFLICT (kind, grp) DO NOTHING),
sums AS (SELECT kind, grp, part, ` + sumCounts + ` FROM gone GROUP BY kind, grp, part
	UNION ALL SELECT kind, '', '', ` + sumCounts + ` FROM gone GROUP BY kind)
` + intoTotals + `SELECT * FROM sums ORDER BY kind, grp, part` + addCounts
)

// liteFold does what pgFold does, in a transaction that excludes others.
func liteFold() []string {
	return []string{
		`INSERT INTO once_groups (kind, grp, state, created_at, changed_at) SELECT DISTINCT kind, grp, 1, ?1, ?1 FROM once_deltas WHERE accepted > 0 ON CONFLICT DO NOTHING`,
		intoTotals + `SELECT kind, grp, part, ` + sumCounts + ` FROM once_deltas WHERE TRUE GROUP BY kind, grp, part` + addCounts,
		intoTotals + `SELECT kind, '', '', ` + sumCounts + ` FROM once_deltas WHERE TRUE GROUP BY kind` + addCounts,
		`DELETE FROM once_deltas`,
	}
}

const sqlAnyDelta = `SELECT 1 FROM once_deltas LIMIT 1`

// Sweep does what no caller waits for: effects of groups that were resumed or cancelled become due
// again, and counts are added up. Call it every few seconds, by one loop per instance. It may be
// interrupted at any point, and several instances may run it at once.
func (l *Ledger) Sweep(ctx context.Context) error {
	return l.routine(ctx, "sweep", func(ctx context.Context) error {
		if err := l.unparkAll(ctx); err != nil {
			return err
		}
		if err := l.store.forgetDue(ctx); err != nil {
			return err
		}
		return l.fold(ctx)
	})
}

func (l *Ledger) fold(ctx context.Context) error {
	for {
		found := false
		if err := l.store.read(ctx, func(q querier, _ time.Time) error {
			return q.query(ctx, func(scanner) error { found = true; return nil }, sqlAnyDelta)
		}); err != nil || !found {
			return err
		}
		full := false
		if err := l.update(ctx, groupLock{}, func(q querier, now time.Time) error {
			if l.store.dialect() == portable.SQLite {
				for i, sql := range liteFold() {
					args := []any{now}
					if i > 0 {
						args = nil
					}
					if _, err := q.exec(ctx, sql, args...); err != nil {
						return err
					}
				}
				return nil
			}
			n, err := q.exec(ctx, pgFold, foldChunk, now)
			full = n > 0 // otherwise another instance has the rest
			return err
		}); err != nil || !full {
			return err
		}
	}
}

const (
	sqlParkedGroups = `SELECT kind, grp FROM once_groups WHERE parked AND state <> 2 AND (kind > $1 OR kind = $1 AND grp > $2) ORDER BY kind, grp LIMIT $3`

	// %[1]s tells the rows of a group apart, and %[2]s is a locking clause. The first part reads only the index of parked rows, and is executed once: as a subquery it
	// could be executed again for each row, and lock others each time.
	sqlUnpark = `WITH parked AS MATERIALIZED (SELECT %[1]s FROM once_due WHERE kind = $1 AND grp = $2 AND at IS NULL ORDER BY kind, grp, %[1]s LIMIT $4%[2]s)
UPDATE once_due SET at = $3 WHERE kind = $1 AND grp = $2 AND %[1]s IN (SELECT %[1]s FROM parked)`

	sqlUnparked = `UPDATE once_groups SET parked = FALSE WHERE kind = $1 AND grp = $2
	AND NOT EXISTS (SELECT 1 FROM once_due WHERE kind = $1 AND grp = $2 AND at IS NULL)`
)

func unparkSQL(s store, q querier) string {
	key := "number"
	if s.dialect() == portable.SQLite {
		key = "id"
	}
	return fmt.Sprintf(sqlUnpark, key, q.forUpdate(true))
}

func (l *Ledger) unparkAll(ctx context.Context) error {
	for last := (groupID{}); ; {
		groups, err := selectAll(ctx, l, func(r scanner, g *groupID, _ time.Time) error { return r.Scan(&g.kind, &g.name) },
			sqlParkedGroups, last.kind, last.name, unparkList)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if err := l.unpark(ctx, g); err != nil {
				return err
			}
			last = g
		}
		if len(groups) < unparkList {
			return nil
		}
	}
}

// unpark has the effects of a group claimed again. It holds the lock of the group in shared mode, so
// that no pause begins and no claim parks meanwhile. The flag is cleared when nothing is parked, by
// anybody.
func (l *Ledger) unpark(ctx context.Context, g groupID) error {
	for {
		more := false
		if err := l.update(ctx, groupLock{shared: &g}, func(q querier, now time.Time) error {
			state := rules.GroupRunning
			if err := q.query(ctx, func(r scanner) error { return r.Scan((*groupStateColumn)(&state)) }, sqlGroupState, g.kind, g.name); err != nil {
				return err
			}
			if state == rules.GroupPaused {
				more = false
				return nil
			}
			n, err := q.exec(ctx, unparkSQL(l.store, q), g.kind, g.name, now, unparkChunk)
			if err != nil {
				return err
			}
			if more = n > 0; more {
				return nil
			}
			_, err = q.exec(ctx, sqlUnparked, g.kind, g.name)
			return err
		}); err != nil || !more {
			return err
		}
	}
}
