package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Execer runs a statement of AcceptTx in the transaction of a caller, which begins, commits and rolls
// back on its own. PgxTx and SQLTx make one.
type Execer interface {
	// Query runs a statement with $n placeholders and calls row for each row of its result.
	Query(ctx context.Context, row func(scan func(dest ...any) error) error, sql string, args ...any) error
}

// PgxTx returns the Execer of a transaction of pgx.
func PgxTx(tx pgx.Tx) Execer { return pgxTx{tx} }

type pgxTx struct{ tx pgx.Tx }

// Query implements Execer.
func (t pgxTx) Query(ctx context.Context, row func(func(...any) error) error, sql string, args ...any) error {
	return pgQuerier{t.tx}.query(ctx, func(r scanner) error { return row(r.Scan) }, sql, args...)
}

// SQLTx returns the Execer of a transaction of database/sql, with any driver for PostgreSQL.
func SQLTx(tx *sql.Tx) Execer { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

// Query implements Execer.
func (t sqlTx) Query(ctx context.Context, row func(func(...any) error) error, query string, args ...any) error {
	return portable.EachRow(ctx, t.tx.QueryContext, func(r *sql.Rows) error { return row(r.Scan) }, query, args...)
}

// acceptTxChunk is the number of records per statement. The others have one.
const acceptTxChunk = 20

// AcceptTx accepts records in the PostgreSQL transaction of a caller, so they exist if it commits. It
// neither reads nor locks a group: a pause or a cancellation applies when the effects are claimed. They have no
// grace, because only the caller knows of the commit. Until
// the transaction ends, others that accept the same key wait for it, so keep it short.
//
// The first statement compares the ledger of the transaction with this one: ErrOtherLedger, also if the
// ledger is a SQLite file, because a caller's transaction would stop all claims and settles there. A
// record that is accepted already is no error, and another request with its key is ErrConflict.
//
// After any error roll the transaction back. The role of the transaction needs SELECT on once_ledger
// and once_effects, and INSERT on once_effects, once_due and once_deltas. With REPEATABLE READ or
// SERIALIZABLE a key that another transaction has accepted meanwhile is a serialization failure.
func (l *Ledger) AcceptTx(ctx context.Context, tx Execer, records []Record) error {
	return l.call(ctx, "accept in a transaction", func(ctx context.Context) error {
		items := make([]*acceptItem, 0, len(records))
		for i := range records {
			item := &acceptItem{record: &records[i]}
			var err error
			if item.kind, err = l.checkRecord(item.record); err != nil {
				return err
			}
			item.key = rowKey{item.kind.number, item.record.Group, item.record.ID}
			items = append(items, item)
		}
		now, schema, err := l.compareLedger(ctx, tx)
		if err != nil {
			return err
		}
		slices.SortStableFunc(items, func(a, b *acceptItem) int { return compareKeys(a.key, b.key) })
		fresh := map[rowKey]*storedRow{}
		var rows []*storedRow
		for _, item := range items {
			if row := fresh[item.key]; row != nil {
				if !item.kind.same(row, item.record) {
					return conflict(item)
				}
				continue
			}
			row := newRow(item.record, item.key)
			row.Row, _, _ = item.kind.policy().Apply(row.Row, rules.Event{Kind: rules.EventAccept, Now: now, Group: rules.GroupRunning, Published: item.record.Published})
			fresh[item.key] = row
			rows = append(rows, row)
		}
		if err := insertTx(ctx, tx, schema, rows, fresh); err != nil {
			return err
		}
		if slices.ContainsFunc(rows, func(r *storedRow) bool { return !r.inserted }) {
			// An effect that exists is known when a failover can't lose it.
			if err := l.store.confirm(ctx); err != nil {
				return err
			}
		}
		return compareTx(ctx, tx, schema, items, fresh)
	})
}

func conflict(item *acceptItem) error {
	return fmt.Errorf("once: ledger: effect %s: %w", item.record.Key.text(), ErrConflict)
}

// compareLedger returns the time of the database and the schema of the ledger.
func (l *Ledger) compareLedger(ctx context.Context, tx Execer) (now time.Time, schema string, err error) {
	if l.store.dialect() == portable.SQLite {
		return now, "", fmt.Errorf("once: ledger: %w: the ledger is a SQLite file, where a caller's transaction would stop all claims and settles: use Accept", ErrOtherLedger)
	}
	l.mu.RLock()
	h := l.home
	l.mu.RUnlock()
	id := ""
	err = tx.Query(ctx, func(scan func(...any) error) error { return scan(&id, &now) }, `SELECT id, clock_timestamp() FROM `+h.schema+`once_ledger`)
	switch {
	case err != nil && noTable(err):
		return now, "", fmt.Errorf("once: ledger: %w: it has no table %sonce_ledger: %w", ErrOtherLedger, h.schema, err)
	case err != nil:
		return now, "", err
	case id != h.id:
		return now, "", fmt.Errorf("once: ledger: %w: its id is %s and not %s", ErrOtherLedger, id, h.id)
	}
	return now.UTC().Add(time.Duration(l.opts.Skew.Load())), h.schema, nil
}

// noTable reports whether a database has no such table or schema.
func noTable(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState() == "42P01" || state.SQLState() == "3F000"
	}
	return strings.Contains(err.Error(), "no such table")
}

// acceptTxSQL accepts n rows, with one parameter per value.
func acceptTxSQL(schema string, n int) string {
	rows := make([]string, n)
	for i := range rows {
		rows[i] = "(" + list(acceptColumns, func(p int, c column[storedRow]) string {
			return fmt.Sprintf("$%d::%s", i*len(acceptColumns)+p, c.kind)
		}) + ")"
	}
	source := "SELECT " + written(acceptColumns) + " FROM (VALUES " + strings.Join(rows, ", ") + ") AS u(" + names(acceptColumns, "") + ")"
	return acceptSQL(schema, source, fmt.Sprintf("$%d", n*len(acceptColumns)+1), "", "")
}

func insertTx(ctx context.Context, tx Execer, schema string, rows []*storedRow, fresh map[rowKey]*storedRow) error {
	for len(rows) > 0 {
		n := 1
		if len(rows) >= acceptTxChunk {
			n = acceptTxChunk
		}
		args := make([]any, 0, n*len(acceptColumns)+1)
		number(rows[:n])
		for _, row := range rows[:n] {
			for _, v := range insertEffect.args(row) {
				args = append(args, orNull(v))
			}
		}
		rows = rows[n:]
		if err := tx.Query(ctx, func(scan func(...any) error) error {
			var k rowKey
			err := scan(&k.kind, &k.group, &k.id)
			if err == nil {
				fresh[k].inserted = true
			}
			return err
		}, acceptTxSQL(schema, n), append(args, randomNumber())...); err != nil {
			return err
		}
	}
	return nil
}

// orNull is an argument for any driver.
func orNull(v any) any {
	switch v := v.(type) {
	case time.Time:
		if v.IsZero() {
			return nil
		}
	case []byte:
		if v == nil {
			return nil
		}
	}
	return v
}

// compareTx compares the records whose effects exist.
func compareTx(ctx context.Context, tx Execer, schema string, items []*acceptItem, fresh map[rowKey]*storedRow) error {
	for _, item := range items {
		if fresh[item.key].inserted {
			continue
		}
		row, found := &storedRow{}, false
		if err := tx.Query(ctx, func(scan func(...any) error) error { found = true; return scan(&row.request, &row.payload) },
			`SELECT request, payload FROM `+schema+`once_effects WHERE kind = $1 AND grp = $2 AND id = $3`, item.key.kind, item.key.group, item.key.id); err != nil {
			return err
		}
		if !found || !item.kind.same(row, item.record) {
			return conflict(item)
		}
	}
	return nil
}
