package ledger

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// The statements for payouts in SQLite, in addition to those of columns.go. Each is prepared once
// and executed for each row.
const (
	sqliteReadPromotion = `SELECT state FROM promotions WHERE type = ?1 AND promotion_id = ?2`

	sqliteAddPromotion = `INSERT INTO promotions (type, promotion_id, state, created_at, changed_at)
VALUES (?1, ?2, 'RUNNING', ?3, ?3) ON CONFLICT DO NOTHING`

	sqliteReadFrom = ` FROM payouts WHERE type = ?1 AND promotion_id = ?2 AND target_id = ?3`

	sqliteMarkEnqueued = `UPDATE payouts SET hint = 'stream', hint_due = ?3, version = version + 1
WHERE id = ?1 AND version = ?2 AND settled_at IS NULL`
)

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	sqliteReadRow     = `SELECT ` + names(rowColumns, "") + sqliteReadFrom
	sqliteReadMessage = `SELECT ` + names(payoutColumns, "") + sqliteReadFrom

	sqliteFailedMessage = `SELECT ` + names(messageColumns, "") + `, (SELECT min(ended_at) FROM attempts WHERE payout_id = p.id) FROM payouts AS p WHERE p.id = ?1`
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
	tx := &sqliteTransaction{s: s}
	snap := &readResult{now: s.now(), promotions: map[payouts.Promotion]rules.GroupState{}, rows: make(map[payouts.Key]*storedRow, len(w.keys))}
	if err := tx.readMore(ctx, w, snap); err != nil {
		tx.rollback()
		return nil, nil, err
	}
	return tx, snap, nil
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

func (tx *sqliteTransaction) readMore(_ context.Context, w readRequest, s *readResult) error {
	for _, p := range w.promotions {
		var st string
		found, err := tx.queryRow(sqliteReadPromotion, []any{string(p.Type), p.ID}, &st)
		if err != nil {
			return err
		}
		if found {
			s.promotions[p] = rules.GroupState(st)
		}
	}
	query, columns := sqliteReadRow, rowColumns
	if w.messages {
		query, columns = sqliteReadMessage, payoutColumns
	}
	for _, k := range w.keys {
		r := &storedRow{}
		found, err := tx.queryRow(query, []any{string(k.Type), k.Promotion, k.Target}, destinations(r, columns)...)
		if err != nil {
			return err
		}
		if found {
			r.before = r.Row
			s.rows[k] = r
		}
	}
	return nil
}

func (tx *sqliteTransaction) addPromotions(_ context.Context, ps []payouts.Promotion, now time.Time) error {
	for _, p := range ps {
		if err := tx.s.run(sqliteAddPromotion, string(p.Type), p.ID, now); err != nil {
			return err
		}
	}
	return nil
}

func (tx *sqliteTransaction) insert(_ context.Context, rows []*storedRow) error {
	for _, r := range rows {
		res, err := tx.s.exec(insertPayouts.sqlite, insertPayouts.args(r)...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			continue
		}
		if r.ID, err = res.LastInsertId(); err != nil {
			return err
		}
	}
	return nil
}

func (tx *sqliteTransaction) failedMessages(_ context.Context, ids []int64) (map[int64]failedMessage, error) {
	found := make(map[int64]failedMessage, len(ids))
	for _, id := range ids {
		var row storedRow
		var first time.Time
		if _, err := tx.queryRow(sqliteFailedMessage, []any{id}, append(destinations(&row, messageColumns), (*portable.Time)(&first))...); err != nil {
			return nil, err
		}
		found[id] = failedMessage{row.storedMessage, first}
	}
	return found, nil
}

func (tx *sqliteTransaction) querier() querier { return tx.s.transactionQuerier() }

func (tx *sqliteTransaction) commit(ctx context.Context, c *writeSet) error {
	if err := tx.writeAll(ctx, c); err != nil {
		return err
	}
	tx.done = true
	return tx.s.end(true)
}

func (tx *sqliteTransaction) writeAll(ctx context.Context, c *writeSet) error {
	if err := tx.insert(ctx, c.inserts); err != nil {
		return err
	}
	if err := runEach(tx.s, updatePayouts, c.rows); err != nil {
		return err
	}
	if err := runEach(tx.s, insertAttempts, c.attempts); err != nil {
		return err
	}
	if err := runEach(tx.s, insertOutbox, c.outbox); err != nil {
		return err
	}
	return runEach(tx.s, addToSummaries, c.summaries)
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
		tx.s.log.Error("ledger: sqlite rollback", "error", err)
	}
}

func (s *sqliteStore) markEnqueued(ctx context.Context, p payouts.Promotion, incarnation string, rows []FeedItem) (int, error) {
	marked := 0
	err := s.update(ctx, nil, func(q querier, now time.Time) error {
		same, err := sameIncarnation(ctx, q, p, incarnation)
		if err != nil || !same {
			return err
		}
		for _, r := range rows {
			n, err := q.exec(ctx, sqliteMarkEnqueued, r.id, r.version, now)
			if err != nil {
				return err
			}
			marked += int(n)
		}
		return nil
	})
	return marked, err
}
