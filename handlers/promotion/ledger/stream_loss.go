package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Incarnation returns the recorded incarnation of the promotion's stream; empty: none.
func (l *Ledger) Incarnation(ctx context.Context, p payouts.Promotion) (token string, err error) {
	err = l.read(ctx, "incarnation", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error { return r.Scan(&token) },
			`SELECT incarnation FROM promotion_streams WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID)
	})
	return token, err
}

// sameIncarnation locks the row of the promotion's stream and compares.
func sameIncarnation(ctx context.Context, q querier, p payouts.Promotion, incarnation string) (bool, error) {
	recorded := ""
	err := q.query(ctx, func(r scanner) error { return r.Scan(&recorded) },
		`SELECT incarnation FROM promotion_streams WHERE type = $1 AND promotion_id = $2`+q.forUpdate(false), string(p.Type), p.ID)
	return recorded == incarnation, err
}

// RecordIncarnation records the incarnation of a stream if none is recorded and it is not retired. It
// reports whether incarnation is now the recorded one. The creator of a stream calls it before the first entry is
// added, so that a loss is detected which no feeder has seen. The recorded incarnation of an
// earlier stream stays: the feeder calls RecordStreamLoss.
func (l *Ledger) RecordIncarnation(ctx context.Context, p payouts.Promotion, incarnation string) (bool, error) {
	same := false
	err := l.routine(ctx, "adopt incarnation", func(q querier, _ time.Time) error {
		if _, err := q.exec(ctx, `INSERT INTO promotion_streams AS s (type, promotion_id, active, incarnation)
			VALUES ($1, $2, FALSE, $3) ON CONFLICT (type, promotion_id) DO UPDATE SET incarnation = excluded.incarnation
			WHERE s.incarnation = '' AND s.retired <> excluded.incarnation`, string(p.Type), p.ID, incarnation); err != nil {
			return err
		}
		var err error
		same, err = sameIncarnation(ctx, q, p, incarnation)
		return err
	})
	return same, err
}

// RecordIncarnationIfActive is RecordIncarnation for a stream that the feeder has found. It changes
// nothing for an inactive promotion: that stream is being deleted, and its deletion is no loss.
func (l *Ledger) RecordIncarnationIfActive(ctx context.Context, p payouts.Promotion, incarnation string) error {
	return l.routine(ctx, "adopt incarnation", func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `UPDATE promotion_streams SET incarnation = $3
			WHERE type = $1 AND promotion_id = $2 AND incarnation = '' AND retired <> $3 AND active`, string(p.Type), p.ID, incarnation)
		return err
	})
}

// Retire notes that the stream of that incarnation was deleted in order, so that its absence is no
// loss. A feeder may have found it before, and records it between Deactivate and the deletion, or even
// later.
func (l *Ledger) Retire(ctx context.Context, p payouts.Promotion, incarnation string) error {
	return l.routine(ctx, "retire incarnation", func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `UPDATE promotion_streams SET retired = $3, incarnation = CASE WHEN incarnation = $3 THEN '' ELSE incarnation END
			WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID, incarnation)
		return err
	})
}

// RecordStreamLoss records the loss of a stream if recorded is still the recorded incarnation. In
// one transaction the unsettled payouts in the stream get the queue location none, and found is
// recorded (empty: the stream is absent). It returns their number, and whether there was a loss.
// Only the feeder of the promotion calls it.
//
// One call runs at a time. Each may write a hundred thousand rows; together they would use all
// connections of status, readiness and outbox.
func (l *Ledger) RecordStreamLoss(ctx context.Context, p payouts.Promotion, recorded, found string) (n int64, done bool, err error) {
	select {
	case l.streamLoss <- struct{}{}:
		defer func() { <-l.streamLoss }()
	case <-ctx.Done():
		return 0, false, ctx.Err()
	}
	err = l.routine(ctx, "record a lost stream", func(q querier, now time.Time) error {
		n, done = 0, false
		same, err := sameIncarnation(ctx, q, p, recorded)
		if err != nil || !same || recorded == "" {
			return err
		}
		if n, err = clearStreamLocations(ctx, q, p, now); err != nil {
			return err
		}
		done = true
		_, err = q.exec(ctx, `UPDATE promotion_streams SET incarnation = $3 WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID, found)
		return err
	})
	return n, done && err == nil, err
}

// clearStreamLocations sets the queue location of every unsettled payout in the stream to none.
func clearStreamLocations(ctx context.Context, q querier, p payouts.Promotion, now time.Time) (int64, error) {
	// Lock the rows in the order of CompareKeys.
	if q.forUpdate(false) != "" {
		if _, err := q.exec(ctx, `SELECT id FROM payouts WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND feed = 'stream' AND hint = 'stream'
			ORDER BY target_id`+q.forUpdate(false), string(p.Type), p.ID); err != nil {
			return 0, err
		}
	}
	return q.exec(ctx, `UPDATE payouts SET hint = 'none', hint_due = $3, version = version + 1
		WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND feed = 'stream' AND hint = 'stream'`, string(p.Type), p.ID, now)
}

// Rebuild sets the queue location of all payouts in the stream to none, as after a loss: the feeder
// enqueues them again. It returns their number. It is safe at any time: an entry that is in the
// stream twice has one effect. An unknown promotion returns ErrNotFound.
func (l *Ledger) Rebuild(ctx context.Context, p payouts.Promotion, by Steering) (int64, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	who, why := clean(by.Who), clean(by.Why)
	if who == "" || why == "" {
		return 0, rules.Invalid("promotion %s: a rebuild needs who and why", p)
	}
	var n int64
	err := l.tried(by.Try, l.update(ctx, "rebuild", nil, func(q querier, now time.Time) error {
		known := false
		if err := q.query(ctx, func(r scanner) error { var s string; known = true; return r.Scan(&s) },
			`SELECT state FROM promotions WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID); err != nil {
			return err
		}
		if !known {
			return fmt.Errorf("promotion %s: %w", p, ErrNotFound)
		}
		// Lock the row of the stream first, as every feeder does.
		if _, err := sameIncarnation(ctx, q, p, ""); err != nil {
			return err
		}
		var err error
		if n, err = clearStreamLocations(ctx, q, p, now); err != nil {
			return err
		}
		if by.Try {
			return errRollback
		}
		return writeAudit(ctx, q, now, payouts.Key{Type: p.Type, Promotion: p.ID}, Audit{Who: who, Why: why, Action: "rebuild",
			Detail: fmt.Sprintf("%d payouts are enqueued again", n)})
	}))
	return n, err
}
