package ledger

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgTransaction is a transaction on a connection of the pool for effects. Its statements are sent in
// pipelines: usually it costs two round trips.
type pgTransaction struct {
	s    *postgres
	conn *pgxpool.Conn
	done bool
	// found: an effect was read. Its row may be on this server alone; see confirm.
	found bool
	// Of a claim: the rows of once_due that it has locked, by number, and the number by effect.
	locked map[int64]*lockedDue
	dueOf  map[rowKey]int64
	begun  map[rowKey]int64 // by beginFast: the number that the effect has now
	now    time.Time        // of the last read
}

func (s *postgres) begin(ctx context.Context, w readRequest) (transaction, *readResult, error) {
	conn, err := s.hot.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	tx, read := &pgTransaction{s: s, conn: conn, locked: map[int64]*lockedDue{}, dueOf: map[rowKey]int64{}, begun: map[rowKey]int64{}}, newReadResult()
	var b pgx.Batch
	b.Queue(pgBegin)
	if w.wait > 0 {
		b.Queue(pgSetLockTimeout, strconv.FormatInt(w.wait.Milliseconds(), 10))
	}
	if w.due == nil {
		tx.queueReads(&b, w, read)
		if err := conn.SendBatch(ctx, &b).Close(); err != nil {
			tx.rollback()
			return nil, nil, err
		}
		return tx, read, nil
	}
	if err := tx.lockAllDue(ctx, &b, w, read); err != nil {
		tx.rollback()
		return nil, nil, err
	}
	return tx, read, nil
}

// lockAllDue sends b with the statement that locks what is due. Its rows are asked for in turns, because they have
// different numbers of effects.
//
// It also takes the locks of the groups and of the kind's pause, in shared mode, so that nothing is paused until the commit.
// The effects of a group whose lock is not free are left out.
func (tx *pgTransaction) lockAllDue(ctx context.Context, b *pgx.Batch, w readRequest, read *readResult) error {
	pause, free := pauseLock(w.due.kind), false
	b.Queue(pgTryKindLock, pause.kind, pause.name).QueryRow(func(row pgx.Row) error { return row.Scan(&free) })
	defer func() {
		if !free {
			read.due = nil
		}
	}()
	if w.due.after != nil {
		tx.lockTurn(b, w.due, read)
		if err := tx.conn.SendBatch(ctx, b).Close(); err != nil || len(read.due) == w.due.limit {
			return err
		}
		b = &pgx.Batch{}
	}
	for range maxDueTurns {
		missing, got, ids := w.due.limit-len(read.due), 0, 0
		asked := tx.s.rowsFor(missing)
		tx.lockDue(b, w.due, read, asked, &got, &ids)
		if err := tx.conn.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		tx.s.learnRows(got, ids)
		if read.rest = tx.restOf(w.due, got < asked); got < asked || len(read.due) == w.due.limit {
			return nil
		}
		b = &pgx.Batch{}
	}
	return nil
}

// maxDueTurns bounds the statements of one claim that lock rows of once_due.
const maxDueTurns = 8

func (tx *pgTransaction) readMore(ctx context.Context, w readRequest, read *readResult) error {
	var b pgx.Batch
	tx.queueReads(&b, w, read)
	return tx.conn.SendBatch(ctx, &b).Close()
}

// queueReads adds the reads, and then the clock.
func (tx *pgTransaction) queueReads(b *pgx.Batch, w readRequest, read *readResult) {
	if len(w.groups) > 0 {
		if w.share {
			kinds, names := groupArrays(w.groups)
			b.Queue(pgShareGroupLocks, kinds, names)
		}
		kinds, names := groupArrays(w.groups)
		b.Queue(pgReadGroups, kinds, names).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id groupID
				var g groupRow
				if err := rows.Scan(&id.kind, &id.name, (*groupStateColumn)(&g.state), &g.parked); err != nil {
					return err
				}
				read.groups[id] = g
			}
			return rows.Err()
		})
	}
	if w.pauseOf != 0 {
		b.Queue(pgReadPaused, w.pauseOf).QueryRow(func(row pgx.Row) error { return row.Scan(&read.paused) })
	}
	if len(w.keys) > 0 {
		columns := rowColumns
		if w.messages {
			columns = effectColumns
		}
		kinds, groups, ids := keyArrays(w.keys)
		b.Queue(pgReadEffects[w.lock][w.messages], kinds, groups, ids).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				r, err := scanRow(rows, columns)
				if err != nil {
					return err
				}
				tx.found = true
				if number, claimed := tx.dueOf[r.rowKey]; claimed && r.due != number {
					tx.locked[number].left[r.id] = true // it is in another row
					continue
				}
				read.rows[r.rowKey] = r
			}
			return rows.Err()
		})
	}
	b.Queue(pgClock).QueryRow(func(row pgx.Row) error {
		var t time.Time
		err := row.Scan(&t)
		read.now = tx.s.now(t)
		tx.now = read.now
		return err
	})
}

func (tx *pgTransaction) addGroups(ctx context.Context, groups []groupID, now time.Time) error {
	kinds, names := groupArrays(groups)
	_, err := tx.conn.Exec(ctx, pgAddGroups, kinds, names, now)
	return err
}

func (tx *pgTransaction) querier() querier { return pgQuerier{tx.conn} }

// commit sends the writes and the COMMIT in one pipeline. After a failed statement the COMMIT is a
// rollback. Rows of once_due are written after the effects: see the package comment.
func (tx *pgTransaction) commit(ctx context.Context, w *writeSet) error {
	var b pgx.Batch
	if len(w.inserts) > 0 {
		tx.queueInserts(&b, w.inserts)
	}
	due := tx.planDue(w)
	queueUpdates(&b, due.changed)
	due.queue(&b, tx)
	queueRows(&b, insertAttempts, w.attempts)
	queueShrunk(&b, deleteProblems, w.solved)
	queueRows(&b, setProblems, w.problems)
	queueRows(&b, insertResults, w.results)
	queueRows(&b, insertDeltas, w.deltas)
	if len(w.parked) > 0 {
		kinds, names := groupArrays(w.parked)
		b.Queue(pgParkGroups, kinds, names)
	}
	// A transaction that changes a row waits for the standby anyway.
	if (tx.found || len(w.inserts) > 0) && len(due.changed) == 0 && len(due.rows) == 0 {
		b.Queue(pgConfirm)
	}
	if err := tx.end(ctx, &b); err != nil {
		return err
	}
	tx.s.batches.committed(due, tx.now)
	return nil
}

func queueRows[T any](b *pgx.Batch, st statement[T], rows []*T) {
	if len(rows) > 0 {
		b.Queue(st.postgres, st.arrays(rows)...)
	}
}

// queueShrunk is queueRows for a table that may be empty at one time and large at another. A plan that is kept
// from when it was empty reads all of it for each batch, until something analyses the table again, so
// each execution has a plan of its own.
func queueShrunk[T any](b *pgx.Batch, st statement[T], rows []*T) {
	if len(rows) > 0 {
		b.Queue("SET LOCAL plan_cache_mode = force_custom_plan")
		queueRows(b, st, rows)
		b.Queue("SET LOCAL plan_cache_mode = force_generic_plan")
	}
}

func (tx *pgTransaction) queueInserts(b *pgx.Batch, rows []*storedRow) {
	byKey := make(map[rowKey]*storedRow, len(rows))
	for _, r := range rows {
		byKey[r.rowKey] = r
		r.inserted = false
	}
	number(rows)
	kinds, graces := gracesOf(rows)
	sql, args := pgAccept, append(insertEffect.arrays(rows), randomNumber(), kinds, graces)
	if told := kindsWhere(rows, func(r *storedRow) (kind int64, ok bool) { return r.kind, r.told }); len(told) > 0 {
		sql, args = pgAcceptTold, append(args, told)
	}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var k rowKey
			if err := rows.Scan(&k.kind, &k.group, &k.id); err != nil {
				return err
			}
			byKey[k].inserted = true
		}
		return rows.Err()
	})
}

// kindsWhere returns the kinds of rows that are ok.
func kindsWhere[T any](rows []T, of func(T) (kind int64, ok bool)) (kinds []int64) {
	for _, r := range rows {
		if kind, ok := of(r); ok && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// gracesOf returns the kinds of rows that have a grace, and their graces in microseconds.
func gracesOf(rows []*storedRow) (kinds, graces []int64) {
	for _, r := range rows {
		if r.grace > 0 && !slices.Contains(kinds, r.kind) {
			kinds, graces = append(kinds, r.kind), append(graces, r.grace.Microseconds())
		}
	}
	return kinds, graces
}

// end sends b and a COMMIT. Its error is that of sqldb.Commits.Do if the server has not waited for its
// standby.
//
// A commit whose wait for the synchronous standby was cancelled, by the end of a call or by an
// operator, is visible on this server, and a failover loses it. Any instance may then find the row.
// So a result that rests on rows that were only read comes from a transaction with pgConfirm, which
// waits for the standby, while a transaction without a write does not.
func (tx *pgTransaction) end(ctx context.Context, b *pgx.Batch) error {
	b.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	if err := tx.s.commits.Do(tx.conn.SendBatch(ctx, b).Close); err != nil {
		return err
	}
	tx.done = true
	tx.conn.Release()
	return nil
}

func (tx *pgTransaction) rollback() {
	if tx.done {
		return
	}
	tx.done = true
	if !tx.conn.Conn().IsClosed() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if _, err := tx.conn.Exec(ctx, "ROLLBACK"); err != nil {
			_ = tx.conn.Conn().Close(ctx)
		}
	}
	tx.conn.Release()
}

// Multi-row statements take one array per column. These functions turn rows into columns, in the
// order of the parameters.

func groupArrays(groups []groupID) (kinds []int64, names []string) {
	kinds, names = make([]int64, len(groups)), make([]string, len(groups))
	for i, g := range groups {
		kinds[i], names[i] = g.kind, g.name
	}
	return kinds, names
}

func keyArrays(keys []rowKey) (kinds []int64, groups, ids []string) {
	kinds, groups, ids = make([]int64, len(keys)), make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		kinds[i], groups[i], ids[i] = k.kind, k.group, k.id
	}
	return kinds, groups, ids
}
