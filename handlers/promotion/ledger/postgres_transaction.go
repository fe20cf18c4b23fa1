package ledger

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// pgTransaction is a transaction on a connection of the pool for payouts. Its statements are sent
// in pipelines: usually it costs two round trips.
type pgTransaction struct {
	s    *postgres
	conn *pgxpool.Conn
	done bool
	// found: a payout was read. Its row may be on this server alone; see confirm.
	found bool
}

func (s *postgres) begin(ctx context.Context, w readRequest) (transaction, *readResult, error) {
	conn, err := s.hot.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	tx := &pgTransaction{s: s, conn: conn}
	snap := &readResult{promotions: map[payouts.Promotion]rules.GroupState{}, rows: make(map[payouts.Key]*storedRow, len(w.keys))}
	var b pgx.Batch
	b.Queue(pgBegin)
	if wait, ok := ctx.Value(lockWait{}).(time.Duration); ok {
		b.Queue(pgSetLockTimeout, strconv.FormatInt(wait.Milliseconds(), 10))
	}
	tx.queueReads(&b, w, snap)
	b.Queue(pgClock).QueryRow(func(row pgx.Row) error {
		var t time.Time
		err := row.Scan(&t)
		snap.now = s.now(t)
		return err
	})
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		tx.rollback()
		return nil, nil, err
	}
	return tx, snap, nil
}

func (tx *pgTransaction) readMore(ctx context.Context, w readRequest, s *readResult) error {
	var b pgx.Batch
	tx.queueReads(&b, w, s)
	return tx.conn.SendBatch(ctx, &b).Close()
}

func (tx *pgTransaction) queueReads(b *pgx.Batch, w readRequest, s *readResult) {
	if len(w.promotions) > 0 {
		types, ids := promotionArrays(w.promotions)
		b.Queue(pgSharePromotionLocks, types, ids)
		b.Queue(pgReadPromotions, types, ids).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var p payouts.Promotion
				var st rules.GroupState
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
	sql, columns := pgReadRows, rowColumns
	switch {
	case w.lock && w.messages:
		sql, columns = pgLockMessages, payoutColumns
	case w.lock:
		sql = pgLockRows
	case w.messages:
		sql, columns = pgReadMessages, payoutColumns
	}
	b.Queue(sql, types, promotions, targets).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			r, err := scanRow(rows, columns)
			if err != nil {
				return err
			}
			s.rows[r.Key] = r
			tx.found = true
		}
		return rows.Err()
	})
}

func (tx *pgTransaction) addPromotions(ctx context.Context, ps []payouts.Promotion, now time.Time) error {
	types, ids := promotionArrays(ps)
	_, err := tx.conn.Exec(ctx, pgAddPromotions, types, ids, now)
	return err
}

func (tx *pgTransaction) insert(ctx context.Context, rows []*storedRow) error {
	var b pgx.Batch
	queueInserts(&b, rows)
	return tx.conn.SendBatch(ctx, &b).Close()
}

func (tx *pgTransaction) failedMessages(ctx context.Context, ids []int64) (map[int64]failedMessage, error) {
	found := make(map[int64]failedMessage, len(ids))
	rows, err := tx.conn.Query(ctx, pgFailedMessages, ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var row storedRow
		var first time.Time
		if err := rows.Scan(append(append([]any{&id}, destinations(&row, messageColumns)...), (*portable.Time)(&first))...); err != nil {
			return nil, err
		}
		found[id] = failedMessage{row.storedMessage, first}
	}
	return found, rows.Err()
}

func (tx *pgTransaction) querier() querier { return pgQuerier{tx.conn} }

// commit sends the writes and the COMMIT in one pipeline. After a failed statement the COMMIT is a
// rollback.
func (tx *pgTransaction) commit(ctx context.Context, c *writeSet) error {
	var b pgx.Batch
	if len(c.inserts) > 0 {
		queueInserts(&b, c.inserts)
	}
	if len(c.rows) > 0 {
		b.Queue(updatePayouts.postgres, append(updatePayouts.arrays(c.rows), len(c.rows))...)
	}
	if len(c.attempts) > 0 {
		b.Queue(insertPayoutAttempts.postgres, insertPayoutAttempts.arrays(c.attempts)...)
	}
	if len(c.outbox) > 0 {
		b.Queue(insertOutbox.postgres, insertOutbox.arrays(c.outbox)...)
	}
	if len(c.summaries) > 0 { // last, because sessions with the same slot update the same row
		b.Queue(pgAddToSummaries, addToSummaries.arrays(c.summaries)...)
	}
	if tx.confirm(c) {
		b.Queue(pgConfirm)
	}
	return tx.end(ctx, &b)
}

// confirm reports whether the results of a write set rest on rows that were only read.
//
// A commit whose wait for the synchronous standby was cancelled, by the end of a flush or by an
// operator, is visible on this server, and a failover loses it. Any instance may then find the row.
// So "exists already" is answered only by a transaction that waits for the standby, and a
// transaction without a write does not. An update of rows and of summaries always writes. Inserts
// may meet rows that exist; those are decided again (acceptBatch) or were inserted by another
// message (outbox, attempts).
func (tx *pgTransaction) confirm(c *writeSet) bool {
	if len(c.rows) > 0 || len(c.summaries) > 0 {
		return false
	}
	return tx.found || len(c.outbox) > 0 || len(c.attempts) > 0
}

// end sends b and a COMMIT. Its error is that of sqldb.Commits.Do if the server has not waited for its
// standby.
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

func (s *postgres) markEnqueued(ctx context.Context, p payouts.Promotion, incarnation string, rows []FeedItem) (int, error) {
	types, promotions, targets := keyArrays(valuesOf(rows, func(r FeedItem) payouts.Key { return r.Key }))
	versions := valuesOf(rows, func(r FeedItem) int64 { return r.version })
	marked := 0
	err := s.inOneTrip(ctx, func(b *pgx.Batch) {
		b.Queue(pgLockStream, string(p.Type), p.ID)
		b.Queue(pgMarkEnqueued, types, promotions, targets, versions, string(p.Type), p.ID, s.skewMicros(), incarnation).Exec(func(tag pgconn.CommandTag) error {
			marked = int(tag.RowsAffected())
			return nil
		})
	}, nil)
	return marked, err
}
