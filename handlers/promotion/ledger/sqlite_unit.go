package ledger

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// The hot statements of SQLite: one row each, prepared once, many in a transaction.
const (
	liteSharePromotion = `SELECT state FROM promotions WHERE type = ?1 AND promotion_id = ?2`

	liteAddPromotion = `INSERT INTO promotions (type, promotion_id, state, created_at, changed_at)
VALUES (?1, ?2, 'RUNNING', ?3, ?3) ON CONFLICT DO NOTHING`

	liteLockFrom = ` FROM payouts AS p WHERE p.type = ?1 AND p.promotion_id = ?2 AND p.target_id = ?3`

	liteLockRow  = `SELECT ` + pgRowColumns + liteLockFrom
	liteLockBody = `SELECT ` + pgRowColumns + `, ` + pgBodyColumns + liteLockFrom

	liteInsertRow = `INSERT INTO payouts (type, promotion_id, target_id, summary_id, state, hint, hint_due, version,
	accepted_at, settled_at, payload, request, headers, record_key, origin)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
ON CONFLICT (type, promotion_id, target_id) DO NOTHING`

	liteUpdateRow = `UPDATE payouts SET state = ?2, hint = ?3, hint_due = ?4, version = ?5, epoch = ?6, attempts = ?7, asks = ?8,
	failures = ?9, interruptions = ?10, lease_until = ?11, next_attempt_at = ?12, first_sent_at = ?13, maybe_charged = ?14,
	asking = ?15, transaction_key = ?16, last_class = ?17, last_error = ?18, attempt_started_at = ?19, attempt_by = ?20, settled_at = ?21,
	released = ?22, key_first_used_at = ?23, no_charge_seen = ?24
WHERE id = ?1`

	liteInsertAttempt = `INSERT INTO attempts (payout_id, epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING`

	liteInsertOutbox = `INSERT INTO outbox (kind, type, promotion_id, target_id, class, error, payload, headers, record_key, origin, handler,
	attempts, first_failed_at, created_at, dedupe)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT DO NOTHING`

	liteBumpSummary = `INSERT INTO promotion_summaries AS s (type, promotion_id, summary_id, paid, failed, unknown, cancelled)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (type, promotion_id, summary_id) DO UPDATE SET paid = s.paid + excluded.paid, failed = s.failed + excluded.failed,
	unknown = s.unknown + excluded.unknown, cancelled = s.cancelled + excluded.cancelled`

	liteDeadBody = `SELECT ` + pgBodyColumns + `, (SELECT min(ended_at) FROM attempts WHERE payout_id = p.id) FROM payouts AS p WHERE p.id = ?1`

	liteMarkFed = `UPDATE payouts SET hint = 'stream', hint_due = ?3, version = version + 1
WHERE id = ?1 AND version = ?2 AND settled_at IS NULL`
)

// liteUnit is the transaction under way on the writing connection.
type liteUnit struct {
	s    *sqliteStore
	done bool
}

func (s *sqliteStore) begin(ctx context.Context, w want) (unit, *snapshot, error) {
	if err := s.write(ctx); err != nil {
		return nil, nil, err
	}
	u := &liteUnit{s: s}
	snap := &snapshot{now: s.now(), promotions: map[Promotion]PromotionState{}, rows: make(map[Key]*stored, len(w.keys))}
	if err := u.more(ctx, w, snap); err != nil {
		u.rollback()
		return nil, nil, err
	}
	return u, snap, nil
}

// row runs a query of at most one row; found is false without one.
func (u *liteUnit) row(query string, args []any, dest ...any) (found bool, err error) {
	st, err := u.s.prepare(query)
	if err != nil {
		return false, err
	}
	err = st.QueryRowContext(context.Background(), args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (u *liteUnit) more(_ context.Context, w want, s *snapshot) error {
	for _, p := range w.promotions {
		var st string
		found, err := u.row(liteSharePromotion, []any{string(p.Type), p.ID}, &st)
		if err != nil {
			return err
		}
		if found {
			s.promotions[p] = PromotionState(st)
		}
	}
	query := liteLockRow
	if w.bodies {
		query = liteLockBody
	}
	for _, k := range w.keys {
		r := &stored{}
		var hintDue, lease, next, first, started, accepted, settled, used sqldb.Time
		dest := []any{&r.ID, (*string)(&r.Type), &r.Promotion, &r.Target, &r.SummaryID, (*string)(&r.State), (*string)(&r.Hint), &hintDue, &r.Version,
			&r.Epoch, &r.Attempts, &r.Asks, &r.Failures, &r.Interruptions, &lease, &next, &first,
			&r.MaybeCharged, &r.Asking, &r.TransactionKey, &r.LastClass, &r.LastError, &started, &r.AttemptBy, &accepted, &settled,
			&r.Released, &used, &r.NoChargeSeen}
		if w.bodies {
			dest = append(dest, &r.payload, &r.request, &r.headers, &r.recordKey, &r.origin)
		}
		found, err := u.row(query, []any{string(k.Type), k.Promotion, k.Target}, dest...)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		r.HintDue, r.LeaseUntil, r.NextAttemptAt, r.FirstSentAt = hintDue.Time, lease.Time, next.Time, first.Time
		r.AttemptStartedAt, r.AcceptedAt, r.SettledAt, r.KeyFirstUsedAt = started.Time, accepted.Time, settled.Time, used.Time
		r.was = r.Row
		s.rows[k] = r
	}
	return nil
}

func (u *liteUnit) addPromotions(_ context.Context, ps []Promotion, now time.Time) error {
	for _, p := range ps {
		if err := u.s.run(liteAddPromotion, string(p.Type), p.ID, now); err != nil {
			return err
		}
	}
	return nil
}

func (u *liteUnit) insert(_ context.Context, rows []*stored) error {
	for _, r := range rows {
		res, err := u.s.exec(liteInsertRow, string(r.Type), r.Promotion, r.Target, r.SummaryID, string(r.State), string(r.Hint), r.HintDue, r.Version,
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

func (u *liteUnit) deadBodies(_ context.Context, ids []int64) (map[int64]deadBody, error) {
	found := make(map[int64]deadBody, len(ids))
	for _, id := range ids {
		var b deadBody
		var first sqldb.Time
		if _, err := u.row(liteDeadBody, []any{id}, &b.payload, &b.request, &b.headers, &b.recordKey, &b.origin, &first); err != nil {
			return nil, err
		}
		b.firstFailedAt = first.Time
		found[id] = b
	}
	return found, nil
}

func (u *liteUnit) querier() querier { return u.s.inTurn() }

func (u *liteUnit) commit(ctx context.Context, c *changes) error {
	if err := u.writeAll(ctx, c); err != nil {
		return err
	}
	u.done = true
	return u.s.end(true)
}

func (u *liteUnit) writeAll(ctx context.Context, c *changes) error {
	if err := u.insert(ctx, c.inserts); err != nil {
		return err
	}
	for _, r := range c.rows {
		if err := u.s.run(liteUpdateRow, r.ID, string(r.State), string(r.Hint), r.HintDue, r.Version, r.Epoch, r.Attempts, r.Asks,
			r.Failures, r.Interruptions, r.LeaseUntil, r.NextAttemptAt, r.FirstSentAt, r.MaybeCharged,
			r.Asking, r.TransactionKey, r.LastClass, r.LastError, r.AttemptStartedAt, r.AttemptBy, r.SettledAt,
			r.Released, r.KeyFirstUsedAt, r.NoChargeSeen); err != nil {
			return err
		}
	}
	for _, a := range c.attempts {
		if err := u.s.run(liteInsertAttempt, a.payoutID, a.Epoch, a.Late, a.Number, string(a.Kind), a.Instance, a.StartedAt, a.EndedAt,
			string(a.Outcome), a.Class, a.Answer, a.Status); err != nil {
			return err
		}
	}
	for _, o := range c.outbox {
		var dedupe any
		if o.dedupe != "" {
			dedupe = o.dedupe
		}
		if err := u.s.run(liteInsertOutbox, string(o.kind), string(o.key.Type), o.key.Promotion, o.key.Target, o.class, o.err, o.payload, o.headers,
			o.recordKey, o.origin, o.handler, o.attempts, o.firstFailedAt, o.createdAt, dedupe); err != nil {
			return err
		}
	}
	for _, d := range c.summaries {
		if err := u.s.run(liteBumpSummary, string(d.Type), d.ID, d.summary, d.paid, d.failed, d.unknown, d.cancelled); err != nil {
			return err
		}
	}
	return nil
}

func (u *liteUnit) rollback() {
	if u.done {
		return
	}
	u.done = true
	if err := u.s.end(false); err != nil {
		u.s.log.Error("ledger: sqlite rollback", "error", err)
	}
}

func (s *sqliteStore) markFed(ctx context.Context, p Promotion, incarnation string, rows []Feed) (int, error) {
	marked := 0
	err := s.update(ctx, nil, func(q querier, now time.Time) error {
		same, err := sameIncarnation(ctx, q, p, incarnation)
		if err != nil || !same {
			return err
		}
		for _, r := range rows {
			n, err := q.exec(ctx, liteMarkFed, r.id, r.seq, now)
			if err != nil {
				return err
			}
			marked += int(n)
		}
		return nil
	})
	return marked, err
}
