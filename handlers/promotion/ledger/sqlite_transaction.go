package ledger

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// The statements for payouts in SQLite. Each is prepared once and executed for each row.
const (
	sqliteReadPromotion = `SELECT state FROM promotions WHERE type = ?1 AND promotion_id = ?2`

	sqliteAddPromotion = `INSERT INTO promotions (type, promotion_id, state, created_at, changed_at)
VALUES (?1, ?2, 'RUNNING', ?3, ?3) ON CONFLICT DO NOTHING`

	sqliteReadFrom = ` FROM payouts AS p WHERE p.type = ?1 AND p.promotion_id = ?2 AND p.target_id = ?3`

	sqliteReadRow     = `SELECT ` + rowColumns + sqliteReadFrom
	sqliteReadMessage = `SELECT ` + rowColumns + `, ` + messageColumns + sqliteReadFrom

	sqliteInsertRow = `INSERT INTO payouts (type, promotion_id, target_id, summary_id, state, hint, hint_due, version,
	accepted_at, settled_at, payload, request, headers, record_key, origin)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
ON CONFLICT (type, promotion_id, target_id) DO NOTHING`

	sqliteUpdateRow = `UPDATE payouts SET state = ?2, hint = ?3, hint_due = ?4, version = ?5, epoch = ?6, attempts = ?7, asks = ?8,
	failures = ?9, interruptions = ?10, lease_until = ?11, next_attempt_at = ?12, first_sent_at = ?13, maybe_charged = ?14,
	asking = ?15, transaction_key = ?16, last_class = ?17, last_error = ?18, attempt_started_at = ?19, attempt_by = ?20, settled_at = ?21,
	released = ?22, key_first_used_at = ?23, no_charge_seen = ?24
WHERE id = ?1`

	sqliteInsertAttempt = `INSERT INTO attempts (payout_id, epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING`

	sqliteInsertOutbox = `INSERT INTO outbox (kind, type, promotion_id, target_id, class, error, payload, headers, record_key, origin, handler,
	attempts, first_failed_at, created_at, dedupe)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT DO NOTHING`

	sqliteAddToSummary = `INSERT INTO promotion_summaries AS s (type, promotion_id, summary_id, paid, failed, unknown, cancelled)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (type, promotion_id, summary_id) DO UPDATE SET paid = s.paid + excluded.paid, failed = s.failed + excluded.failed,
	unknown = s.unknown + excluded.unknown, cancelled = s.cancelled + excluded.cancelled`

	sqliteFailedMessage = `SELECT ` + messageColumns + `, (SELECT min(ended_at) FROM attempts WHERE payout_id = p.id) FROM payouts AS p WHERE p.id = ?1`

	sqliteMarkEnqueued = `UPDATE payouts SET hint = 'stream', hint_due = ?3, version = version + 1
WHERE id = ?1 AND version = ?2 AND settled_at IS NULL`
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
	snap := &readResult{now: s.now(), promotions: map[rules.Promotion]rules.PromotionState{}, rows: make(map[rules.Key]*storedRow, len(w.keys))}
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
			s.promotions[p] = rules.PromotionState(st)
		}
	}
	query := sqliteReadRow
	if w.messages {
		query = sqliteReadMessage
	}
	for _, k := range w.keys {
		r := &storedRow{}
		var times rowTimes
		found, err := tx.queryRow(query, []any{string(k.Type), k.Promotion, k.Target}, rowDestinations(r, &times, w.messages)...)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		times.copyTo(&r.Row)
		r.before = r.Row
		s.rows[k] = r
	}
	return nil
}

func (tx *sqliteTransaction) addPromotions(_ context.Context, ps []rules.Promotion, now time.Time) error {
	for _, p := range ps {
		if err := tx.s.run(sqliteAddPromotion, string(p.Type), p.ID, now); err != nil {
			return err
		}
	}
	return nil
}

func (tx *sqliteTransaction) insert(_ context.Context, rows []*storedRow) error {
	for _, r := range rows {
		res, err := tx.s.exec(sqliteInsertRow, string(r.Type), r.Promotion, r.Target, r.SummaryID, string(r.State), string(r.Queue), r.QueueDue, r.Version,
			r.AcceptedAt, r.SettledAt, r.payload, r.request, r.headers, r.recordKey, r.origin)
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
		var b failedMessage
		var first sqldb.Time
		if _, err := tx.queryRow(sqliteFailedMessage, []any{id}, &b.payload, &b.request, &b.headers, &b.recordKey, &b.origin, &first); err != nil {
			return nil, err
		}
		b.firstFailedAt = first.Time
		found[id] = b
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
	for _, r := range c.rows {
		if err := tx.s.run(sqliteUpdateRow, r.ID, string(r.State), string(r.Queue), r.QueueDue, r.Version, r.Epoch, r.Attempts, r.Lookups,
			r.Failures, r.Interruptions, r.LeaseUntil, r.NextAttemptAt, r.FirstSentAt, r.MaybeCharged,
			r.LookingUp, r.TransactionKey, r.LastClass, r.LastError, r.AttemptStartedAt, r.AttemptBy, r.SettledAt,
			r.Released, r.KeyFirstUsedAt, r.NoChargeSeen); err != nil {
			return err
		}
	}
	for _, a := range c.attempts {
		if err := tx.s.run(sqliteInsertAttempt, a.payoutID, a.Epoch, a.Late, a.Number, string(a.Kind), a.Instance, a.StartedAt, a.EndedAt,
			string(a.Outcome), a.Class, a.Answer, a.Status); err != nil {
			return err
		}
	}
	for _, o := range c.outbox {
		var dedupe any
		if o.dedupe != "" {
			dedupe = o.dedupe
		}
		if err := tx.s.run(sqliteInsertOutbox, string(o.kind), string(o.key.Type), o.key.Promotion, o.key.Target, o.class, o.err, o.payload, o.headers,
			o.recordKey, o.origin, o.handler, o.attempts, o.firstFailedAt, o.createdAt, dedupe); err != nil {
			return err
		}
	}
	for _, d := range c.summaries {
		if err := tx.s.run(sqliteAddToSummary, string(d.Type), d.ID, d.summary, d.paid, d.failed, d.unknown, d.cancelled); err != nil {
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

func (s *sqliteStore) markEnqueued(ctx context.Context, p rules.Promotion, incarnation string, rows []FeedItem) (int, error) {
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
