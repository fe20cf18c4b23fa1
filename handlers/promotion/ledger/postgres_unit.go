package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgUnit is a transaction on a connection of the hot pool. Its statements travel in pipelines: a unit
// costs two round trips unless something rare happens.
type pgUnit struct {
	s    *postgres
	conn *pgxpool.Conn
	done bool
}

func (s *postgres) begin(ctx context.Context, w want) (unit, *snapshot, error) {
	conn, err := s.hot.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	u := &pgUnit{s: s, conn: conn}
	snap := &snapshot{promotions: map[Promotion]PromotionState{}, rows: make(map[Key]*stored, len(w.keys))}
	var b pgx.Batch
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")                      // as readCommitted says
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= partTimeout { // the lock's timeout first: it costs no connection
		b.Queue("SET LOCAL lock_timeout = '" + pgPartLockTimeout + "'")
	}
	u.queueReads(&b, w, snap)
	b.Queue(pgClock).QueryRow(func(row pgx.Row) error {
		var t time.Time
		err := row.Scan(&t)
		snap.now = s.now(t)
		return err
	})
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		u.rollback()
		return nil, nil, err
	}
	return u, snap, nil
}

func (u *pgUnit) more(ctx context.Context, w want, s *snapshot) error {
	var b pgx.Batch
	u.queueReads(&b, w, s)
	return u.conn.SendBatch(ctx, &b).Close()
}

func (u *pgUnit) queueReads(b *pgx.Batch, w want, s *snapshot) {
	if len(w.promotions) > 0 {
		types, ids := promotionArrays(w.promotions)
		b.Queue(pgGates, types, ids)
		b.Queue(pgReadPromotions, types, ids).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var p Promotion
				var st PromotionState
				if err := rows.Scan((*string)(&p.Type), &p.ID, (*string)(&st)); err != nil {
					return err
				}
				s.promotions[p] = st
			}
			return rows.Err()
		})
	}
	if len(w.keys) == 0 {
		return
	}
	types, promotions, targets := keyArrays(w.keys)
	sql := [2][2]string{{pgReadRows, pgReadBodies}, {pgLockRows, pgLockBodies}}[btoi(w.lock)][btoi(w.bodies)]
	b.Queue(sql, types, promotions, targets).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			r, err := scanPgRow(rows, w.bodies)
			if err != nil {
				return err
			}
			s.rows[r.Key] = r
		}
		return rows.Err()
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func scanPgRow(rows pgx.Rows, bodies bool) (*stored, error) {
	var r stored
	var attempts, asks, failures, interruptions, released int32
	var hintDue, lease, next, first, started, accepted, settled, used pgtype.Timestamptz
	dest := []any{&r.ID, (*string)(&r.Type), &r.Promotion, &r.Target, &r.SummaryID, (*string)(&r.State), (*string)(&r.Hint), &hintDue, &r.Version,
		&r.Epoch, &attempts, &asks, &failures, &interruptions, &lease, &next, &first,
		&r.MaybeCharged, &r.Asking, &r.TransactionKey, &r.LastClass, &r.LastError, &started, &r.AttemptBy, &accepted, &settled,
		&released, &used, &r.NoChargeSeen}
	if bodies {
		dest = append(dest, &r.payload, &r.request, &r.headers, &r.recordKey, &r.origin)
	}
	if err := rows.Scan(dest...); err != nil {
		return nil, err
	}
	r.Attempts, r.Asks, r.Failures, r.Interruptions, r.Released = int(attempts), int(asks), int(failures), int(interruptions), int(released)
	for _, t := range []struct {
		to   *time.Time
		from pgtype.Timestamptz
	}{{&r.HintDue, hintDue}, {&r.LeaseUntil, lease}, {&r.NextAttemptAt, next}, {&r.FirstSentAt, first},
		{&r.AttemptStartedAt, started}, {&r.AcceptedAt, accepted}, {&r.SettledAt, settled}, {&r.KeyFirstUsedAt, used}} {
		if t.from.Valid {
			*t.to = t.from.Time.UTC()
		}
	}
	r.was = r.Row
	return &r, nil
}

func (u *pgUnit) addPromotions(ctx context.Context, ps []Promotion, now time.Time) error {
	types, ids := promotionArrays(ps)
	_, err := u.conn.Exec(ctx, pgAddPromotions, types, ids, now)
	return err
}

func (u *pgUnit) insert(ctx context.Context, rows []*stored) error {
	var b pgx.Batch
	queueInserts(&b, rows)
	return u.conn.SendBatch(ctx, &b).Close()
}

func (u *pgUnit) deadBodies(ctx context.Context, ids []int64) (map[int64]deadBody, error) {
	found := make(map[int64]deadBody, len(ids))
	rows, err := u.conn.Query(ctx, pgDeadBodies, ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var b deadBody
		var first pgtype.Timestamptz
		if err := rows.Scan(&id, &b.payload, &b.request, &b.headers, &b.recordKey, &b.origin, &first); err != nil {
			return nil, err
		}
		b.firstFailedAt = first.Time
		found[id] = b
	}
	return found, rows.Err()
}

func (u *pgUnit) querier() querier { return pgQuerier{u.conn} }

// commit sends the writes and the COMMIT in one pipeline: a statement that fails makes the COMMIT a rollback.
func (u *pgUnit) commit(ctx context.Context, c *changes) error {
	var b pgx.Batch
	if len(c.inserts) > 0 {
		queueInserts(&b, c.inserts)
	}
	if len(c.rows) > 0 {
		b.Queue(pgUpdateRows, append(rowArrays(c.rows), len(c.rows))...)
	}
	if len(c.attempts) > 0 {
		b.Queue(pgInsertAttempts, attemptArrays(c.attempts)...)
	}
	if len(c.outbox) > 0 {
		b.Queue(pgInsertOutbox, outboxArrays(c.outbox)...)
	}
	if len(c.summaries) > 0 { // last: its row is the only one that everybody wants
		b.Queue(pgBumpSummaries, summaryArrays(c.summaries)...)
	}
	b.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	if err := u.conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	u.done = true
	u.conn.Release()
	return nil
}

func (u *pgUnit) rollback() {
	if u.done {
		return
	}
	u.done = true
	if !u.conn.Conn().IsClosed() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if _, err := u.conn.Exec(ctx, "ROLLBACK"); err != nil {
			_ = u.conn.Conn().Close(ctx)
		}
	}
	u.conn.Release()
}

func (s *postgres) markFed(ctx context.Context, p Promotion, incarnation string, rows []Feed) (int, error) {
	ids, versions := make([]int64, len(rows)), make(map[int64]int64, len(rows))
	for i, r := range rows {
		ids[i], versions[r.id] = r.id, r.seq
	}
	var marked int64
	err := pgx.BeginTxFunc(ctx, s.hot, readCommitted(), func(tx pgx.Tx) error {
		q := pgQuerier{tx}
		same, err := sameIncarnation(ctx, q, p, incarnation)
		if err != nil || !same {
			return err
		}
		var locked, seqs []int64
		if err := q.query(ctx, func(r scanner) error {
			var id int64
			err := r.Scan(&id)
			locked, seqs = append(locked, id), append(seqs, versions[id])
			return err
		}, pgLockFed, ids); err != nil || len(locked) == 0 {
			return err
		}
		now, err := s.clock(ctx, q)
		if err != nil {
			return err
		}
		marked, err = q.exec(ctx, pgMarkFed, locked, seqs, now)
		return err
	})
	return int(marked), err
}
