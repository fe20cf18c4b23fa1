package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// promotionState reads and locks the state; known is false without a row.
func promotionState(ctx context.Context, q querier, p payouts.Promotion) (st rules.GroupState, known bool, err error) {
	err = q.query(ctx, func(r scanner) error { known = true; return r.Scan((*string)(&st)) },
		`SELECT state FROM promotions WHERE type = $1 AND promotion_id = $2`+q.forUpdate(false), string(p.Type), p.ID)
	return st, known, err
}

// Steering is the operator and the reason of a pause, resume or cancel, for the audit.
type Steering struct {
	Who string // required
	Why string // required by Cancel, and with Future
	// Future: the promotion may have neither a record nor a started event yet, or be paid completely.
	// Its records will find it in that state.
	Future bool
	// Try: nothing is changed, and the error is that of the change.
	Try bool
}

func (s *Steering) check(p payouts.Promotion, to rules.GroupState) error {
	s.Who, s.Why = clean(s.Who), clean(s.Why)
	switch {
	case s.Who == "":
		return rules.Invalid("promotion %s: the audit needs who", p)
	case s.Why == "" && (s.Future || to == rules.GroupCancelled):
		return rules.Invalid("promotion %s: the audit needs why", p)
	}
	return p.Validate()
}

// setPromotionState changes the state and writes the audit in one transaction. CANCELLED is final.
// A promotion with neither a record nor a started event returns ErrNotFound, and one that has nothing
// left to pause or cancel ErrFinished, unless by.Future.
func (l *Ledger) setPromotionState(ctx context.Context, what string, p payouts.Promotion, to rules.GroupState, by Steering) error {
	if err := by.check(p, to); err != nil {
		return err
	}
	return l.tried(by.Try, l.update(ctx, what, &p, func(q querier, now time.Time) error {
		from, known, err := promotionState(ctx, q, p)
		switch {
		case err != nil:
			return err
		case !known:
			if err := l.createPromotion(ctx, q, p, to, by.Future, now); err != nil {
				return err
			}
			from = "NEW"
		case from == rules.GroupCancelled && to != rules.GroupCancelled:
			return ErrCancelled
		case from != to:
			if to != rules.GroupRunning && !by.Future {
				if err := notFinished(ctx, q, p); err != nil {
					return err
				}
			}
			if _, err := q.exec(ctx, `UPDATE promotions SET state = $3, changed_at = $4 WHERE type = $1 AND promotion_id = $2`,
				string(p.Type), p.ID, string(to), now); err != nil {
				return err
			}
		}
		if by.Try {
			return errRollback
		}
		return writeAudit(ctx, q, now, payouts.Key{Type: p.Type, Promotion: p.ID}, Audit{Who: by.Who, Why: by.Why, Action: what,
			Detail: fmt.Sprintf("%s to %s", from, to)})
	}))
}

// tried returns the error of a change. One that was only tried was rolled back, which is no error.
func (*Ledger) tried(try bool, err error) error {
	if try && errors.Is(err, errRollback) {
		return nil
	}
	return err
}

// notFinished returns ErrFinished if as many payouts as the started event announced are paid or
// cancelled, and no other. Without that event more records may come, and a failed or unknown payout can
// be replayed, so there a pause or a cancellation has an effect. The caller holds the promotion's lock.
func notFinished(ctx context.Context, q querier, p payouts.Promotion) error {
	finished := false
	err := q.query(ctx, func(r scanner) error { return r.Scan(&finished) },
		`SELECT s.replayable = 0 AND coalesce((SELECT total_count > 0 AND s.settled >= total_count FROM promotion_streams WHERE type = $1 AND promotion_id = $2), FALSE)
			AND NOT EXISTS (SELECT 1 FROM payouts WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL)
		FROM (SELECT sum(paid + failed + unknown + cancelled) AS settled, sum(failed + unknown) AS replayable FROM promotion_summaries WHERE type = $1 AND promotion_id = $2) AS s`, string(p.Type), p.ID)
	if err == nil && finished {
		return fmt.Errorf("ledger: promotion %s: %w", p, ErrFinished)
	}
	return err
}

// createPromotion inserts the row of a promotion without a record. The caller holds its lock.
func (l *Ledger) createPromotion(ctx context.Context, q querier, p payouts.Promotion, to rules.GroupState, future bool, now time.Time) error {
	announced := future
	if err := q.query(ctx, func(scanner) error { announced = true; return nil },
		`SELECT 1 FROM promotion_streams WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID); err != nil {
		return err
	}
	if !announced {
		return fmt.Errorf("ledger: promotion %s: %w", p, ErrNotFound)
	}
	_, err := q.exec(ctx, `INSERT INTO promotions (type, promotion_id, state, created_at, changed_at) VALUES ($1, $2, $3, $4, $4)`,
		string(p.Type), p.ID, string(to), now)
	return err
}

// Pause stops the promotion: after its return no payout of it is begun. Those of UnderWay end normally. A
// cancelled promotion returns ErrCancelled. Unless by.Future, an unknown one returns ErrNotFound, and one
// whose announced payouts are all paid or cancelled ErrFinished, because nothing is left to hold back.
func (l *Ledger) Pause(ctx context.Context, p payouts.Promotion, by Steering) error {
	return l.setPromotionState(ctx, "pause", p, rules.GroupPaused, by)
}

// Resume runs a paused promotion again; the feeder fills its stream. It has the errors of Pause except
// ErrFinished.
func (l *Ledger) Resume(ctx context.Context, p payouts.Promotion, by Steering) error {
	return l.setPromotionState(ctx, "resume", p, rules.GroupRunning, by)
}

// Cancellation is the result of Cancel.
type Cancellation struct {
	// Cancelled is the number of payouts that this call cancelled.
	Cancelled int64 `json:"cancelled"`
	// InFlight is the number of payouts that were leased when the cancellation took effect, so that they may still be
	// paid, and Longest how long the longest lease lasted from then on.
	InFlight int64         `json:"in_flight"`
	Longest  time.Duration `json:"-"`
	// Ambiguous is the number of payouts that may have been charged. They will be looked up.
	Ambiguous int64 `json:"ambiguous"`
}

// cancelChunk is the number of rows per transaction of Cancel.
const cancelChunk = 500

const sqlCancellable = `SELECT target_id FROM payouts WHERE type = $1 AND promotion_id = $2 AND target_id > $3
AND settled_at IS NULL AND state IN ('PENDING', 'ERROR') ORDER BY target_id LIMIT $4`

// Cancel stops the promotion permanently. After it has taken effect, no charge is requested.
// Payouts that were certainly not charged become CANCELLED; all others are looked up. It may be
// repeated, and then cancels what is left. An unknown promotion returns ErrNotFound, and one whose
// announced payouts are all paid or cancelled ErrFinished, because CANCELLED would say that it was not
// paid; nothing is changed then. With by.Future both are cancelled, for the records that are still to
// come. When ctx ends early, the promotion is cancelled all the same, and the rest follows when its
// entries are read.
func (l *Ledger) Cancel(ctx context.Context, p payouts.Promotion, by Steering) (Cancellation, error) {
	var c Cancellation
	if err := l.setPromotionState(ctx, "cancel", p, rules.GroupCancelled, by); err != nil || by.Try {
		return c, err
	}
	err := l.read(ctx, "cancel", func(q querier, now time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var leased bool
			var n int64
			var until time.Time
			if err := r.Scan(&leased, &n, (*portable.Time)(&until)); err != nil {
				return err
			}
			if leased {
				c.InFlight, c.Longest = n, until.Sub(now)
			} else {
				c.Ambiguous = n
			}
			return nil
		}, `SELECT coalesce(lease_until > $3, FALSE), count(*), max(lease_until) FROM payouts
			WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND state IN ('SENDING', 'AMBIGUOUS') GROUP BY 1`,
			string(p.Type), p.ID, now)
	})
	if err != nil {
		return c, err
	}
	for last := int64(0); ; {
		// In the order of CompareKeys.
		keys, err := selectAll(ctx, l, "cancel", func(r scanner, k *payouts.Key, _ time.Time) error {
			err := r.Scan(&last)
			*k = payouts.Key{Type: p.Type, Promotion: p.ID, Target: last}
			return err
		}, sqlCancellable, string(p.Type), p.ID, last, cancelChunk)
		if err != nil || len(keys) == 0 {
			return c, err
		}
		var n int64
		err = l.transactPastLocks(ctx, readRequest{keys: keys}, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
			n = 0
			effects := l.newEffectSet(read, writes)
			for _, k := range keys {
				row := read.rows[k]
				next, eff, _ := row.Row.Apply(l.policy, rules.Event{Kind: rules.EventCancel, Now: read.now})
				row.Row = next
				effects.add(row, eff, nil, "")
				if eff.Settled {
					n++
				}
			}
			return effects.writeTo(ctx, tx)
		})
		if err != nil {
			return c, l.wrap("cancel", err)
		}
		c.Cancelled += n
	}
}
