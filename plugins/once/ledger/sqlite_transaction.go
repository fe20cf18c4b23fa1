package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// The hot statements in SQLite, in addition to those of columns.go. Each is prepared once and
// executed for each row.
const (
	sqliteLockDue = `SELECT grp, id FROM once_due WHERE kind = ?1 AND lane = ?2 AND at <= ?4 ORDER BY at LIMIT ?3`

	sqliteNextGroup = `SELECT grp FROM once_due WHERE kind = ?1 AND lane = ?2 AND grp > ?3 ORDER BY grp, at LIMIT 1`

	sqliteDueOfGroup = `SELECT id FROM once_due WHERE kind = ?1 AND lane = ?2 AND grp = ?3 AND at <= ?5 ORDER BY at LIMIT ?4`

	sqliteLockRows = `SELECT number, grp, id FROM once_due WHERE number IN (SELECT value FROM json_each(?2)) AND kind = ?1 ORDER BY number, id`

	sqliteReadGroup = `SELECT state, parked FROM once_groups WHERE kind = ?1 AND grp = ?2`

	sqliteReadPaused = `SELECT TRUE FROM once_paused WHERE kind = ?1`

	sqliteAddGroup = `INSERT INTO once_groups (kind, grp, state, created_at, changed_at) VALUES (?1, ?2, 1, ?3, ?3) ON CONFLICT DO NOTHING`

	sqliteParkGroup = `UPDATE once_groups SET parked = TRUE WHERE kind = ?1 AND grp = ?2 AND NOT parked`

	sqliteReadFrom = ` FROM once_effects WHERE kind = ?1 AND grp = ?2 AND id = ?3`
)

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	sqliteReadRow    = `SELECT ` + reads(rowColumns, "") + sqliteReadFrom
	sqliteReadEffect = `SELECT ` + reads(effectColumns, "") + sqliteReadFrom
)

// sqliteTransaction is the running transaction on the writing connection.
type sqliteTransaction struct {
	s    *sqliteStore
	done bool
}

func (s *sqliteStore) begin(ctx context.Context, w readRequest) (transaction, *readResult, error) {
	if err := s.beginImmediate(ctx); err != nil {
		return nil, nil, err
	}
	tx, read := &sqliteTransaction{s: s}, newReadResult()
	if err := tx.readMore(ctx, w, read); err != nil {
		tx.rollback()
		return nil, nil, err
	}
	return tx, read, nil
}

// queryRow runs a query of at most one row; found is false without one.
func (tx *sqliteTransaction) queryRow(query string, args []any, dest ...any) (found bool, err error) {
	st, err := tx.s.prepare(query)
	if err != nil {
		return false, err
	}
	err = st.QueryRowContext(context.Background(), args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (tx *sqliteTransaction) readMore(ctx context.Context, w readRequest, read *readResult) error {
	read.now = tx.s.now()
	if d := w.due; d != nil && d.rows != nil {
		if err := tx.lockRows(d, read); err != nil {
			return err
		}
	} else if d != nil {
		if err := tx.lockDue(ctx, d, read); err != nil {
			return err
		}
	}
	for _, id := range w.groups {
		var g groupRow
		found, err := tx.queryRow(sqliteReadGroup, []any{id.kind, id.name}, (*groupStateColumn)(&g.state), &g.parked)
		if err != nil {
			return err
		}
		if found {
			read.groups[id] = g
		}
	}
	if w.pauseOf != 0 {
		if _, err := tx.queryRow(sqliteReadPaused, []any{w.pauseOf}, &read.paused); err != nil {
			return err
		}
	}
	query, columns := sqliteReadRow, rowColumns
	if w.messages {
		query, columns = sqliteReadEffect, effectColumns
	}
	for _, k := range w.keys {
		r := &storedRow{}
		found, err := tx.queryRow(query, []any{k.kind, k.group, k.id}, destinations(r, columns)...)
		if err != nil {
			return err
		}
		if r.remember(); found { // as scanRow
			read.rows[k] = r
		}
	}
	return nil
}

// lockDue reads what is due in a lane: of the groups that are next, if the request has them, and then the oldest.
func (tx *sqliteTransaction) lockDue(ctx context.Context, d *dueRequest, read *readResult) error {
	if d.after != nil {
		if err := tx.lockTurn(ctx, d, read); err != nil {
			return err
		}
	}
	turn := slices.Clone(read.due)
	return tx.querier().query(ctx, func(r scanner) error {
		k := rowKey{kind: d.kind}
		err := r.Scan(&k.group, &k.id)
		if len(read.due) < d.limit && !slices.Contains(turn, k) {
			read.due = append(read.due, k)
		}
		return err
	}, sqliteLockDue, d.kind, d.lane, d.limit, read.now)
}

// lockTurn reads what is due of the groups after that of the last turn, at most dueIDs of each, as PostgreSQL does.
func (tx *sqliteTransaction) lockTurn(ctx context.Context, d *dueRequest, read *readResult) error {
	read.turn = *d.after
	for i := range d.limit + visitedGroups {
		if len(read.due) == d.limit {
			return nil
		}
		found, err := tx.queryRow(sqliteNextGroup, []any{d.kind, d.lane, read.turn}, &read.turn)
		if err == nil && !found && i == 0 {
			found, err = tx.queryRow(sqliteNextGroup, []any{d.kind, d.lane, ""}, &read.turn)
		}
		if err != nil || !found {
			read.turn = ""
			return err
		}
		if err := tx.querier().query(ctx, func(r scanner) error {
			k := rowKey{kind: d.kind, group: read.turn}
			err := r.Scan(&k.id)
			read.due = append(read.due, k)
			return err
		}, sqliteDueOfGroup, d.kind, d.lane, read.turn, min(dueIDs, d.limit-len(read.due)), read.now); err != nil {
			return err
		}
	}
	return nil
}

// lockRows reads what waits in the rows of a request.
func (tx *sqliteTransaction) lockRows(d *dueRequest, read *readResult) error {
	rows, _ := json.Marshal(d.rows) // numbers always encode
	return tx.querier().query(context.Background(), func(r scanner) error {
		k, number := rowKey{kind: d.kind}, int64(0)
		err := r.Scan(&number, &k.group, &k.id)
		if len(read.due) < d.limit {
			read.due = append(read.due, k)
		} else if !slices.Contains(read.rest, number) {
			read.rest = append(read.rest, number)
		}
		return err
	}, sqliteLockRows, d.kind, string(rows))
}

func (*sqliteTransaction) beginFast(context.Context, *readRequest, fastBegin, *readResult) error {
	return nil
}

func (*sqliteStore) settleFast(_ context.Context, ends []*settleItem, _ time.Duration) ([]bool, error) {
	return make([]bool, len(ends)), nil
}

func (tx *sqliteTransaction) addGroups(_ context.Context, groups []groupID, now time.Time) error {
	for _, g := range groups {
		if err := tx.s.run(sqliteAddGroup, g.kind, g.name, now); err != nil {
			return err
		}
	}
	return nil
}

// insert does what pgAccept does.
func (tx *sqliteTransaction) insert(rows []*storedRow) error {
	counted := deltaSet{}
	number(rows)
	for _, r := range rows {
		r.due = 0 // an effect has a row of its own
		res, err := tx.s.exec(insertEffect.sqlite, insertEffect.args(r)...)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		if r.inserted = n > 0; !r.inserted {
			continue
		}
		d := counted.of(r)
		d.accepted++
		d.count(r.State, 1)
		if r.told {
			if err := runEach(tx.s, insertResults, []*resultRow{resultOfEnd(r, nil)}); err != nil {
				return err
			}
		}
		if r.State.Settled() {
			continue
		}
		due := &dueRow{rowKey: r.rowKey, number: r.hint, lane: r.lane, at: r.AcceptedAt}
		if r.hint != 0 {
			due.at = due.at.Add(r.grace)
		}
		if r.NextAttemptAt.After(due.at) {
			due.at = r.NextAttemptAt
		}
		if err := runEach(tx.s, setDue, []*dueRow{due}); err != nil {
			return err
		}
	}
	return runEach(tx.s, insertDeltas, counted.sorted())
}

func (tx *sqliteTransaction) querier() querier { return tx.s.transactionQuerier() }

func (tx *sqliteTransaction) commit(_ context.Context, w *writeSet) error {
	if err := tx.writeAll(w); err != nil {
		return err
	}
	tx.done = true
	return tx.s.end(true)
}

func (tx *sqliteTransaction) writeAll(w *writeSet) error {
	for _, write := range []func() error{
		func() error { return tx.insert(w.inserts) },
		func() error { return runEach(tx.s, updateEffects, w.rows) },
		func() error { return runEach(tx.s, setDue, w.due) },
		func() error { return runEach(tx.s, deleteDue, w.settled) },
		func() error { return runEach(tx.s, insertAttempts, w.attempts) },
		func() error { return runEach(tx.s, deleteProblems, w.solved) },
		func() error { return runEach(tx.s, setProblems, w.problems) },
		func() error { return runEach(tx.s, insertResults, w.results) },
		func() error { return runEach(tx.s, insertDeltas, w.deltas) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	for _, g := range w.parked {
		if err := tx.s.run(sqliteParkGroup, g.kind, g.name); err != nil {
			return err
		}
	}
	return nil
}

func runEach[T any](s *sqliteStore, st statement[T], rows []*T) error {
	for _, r := range rows {
		if err := s.run(st.sqlite, st.args(r)...); err != nil {
			return err
		}
	}
	return nil
}

func (tx *sqliteTransaction) rollback() {
	if tx.done {
		return
	}
	tx.done = true
	if err := tx.s.end(false); err != nil {
		tx.s.log.Error("the ledger can't roll back a transaction", logs.Err(err))
	}
}
