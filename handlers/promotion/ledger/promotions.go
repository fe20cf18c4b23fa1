package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// update runs fn in a transaction, again when it was the victim of a deadlock or waited for a gate for too long. Between
// two waits for a gate whoever queues behind it goes first.
func (l *Ledger) update(ctx context.Context, what string, gate *Promotion, fn func(q querier, now time.Time) error) error {
	for n := 1; ; n++ {
		err := l.store.update(ctx, gate, fn)
		if err == nil {
			return nil
		}
		f := l.store.fault(err)
		if f != faultRetry && f != faultLocked || f == faultRetry && n >= tries || n >= lockTries || wait(ctx, time.Duration(rand.Int64N(int64(10*time.Millisecond)))) != nil {
			return l.wrap(what, err)
		}
	}
}

func (l *Ledger) read(ctx context.Context, what string, fn func(q querier, now time.Time) error) error {
	if err := l.store.read(ctx, fn); err != nil {
		return l.wrap(what, err)
	}
	return nil
}

// promotionState reads and locks the state; known is false when there is no row.
func promotionState(ctx context.Context, q querier, p Promotion) (st PromotionState, known bool, err error) {
	err = q.query(ctx, func(r scanner) error { known = true; return r.Scan((*string)(&st)) },
		`SELECT state FROM promotions WHERE type = $1 AND promotion_id = $2`+q.forUpdate(false), string(p.Type), p.ID)
	return st, known, err
}

// Steering is who pauses, resumes or cancels a promotion, and why, for the audit.
type Steering struct {
	Who string // required
	Why string // required by Cancel, and with Future
	// Future: the promotion may be one that the ledger does not know yet. Its records will find it in that state.
	Future bool
}

func (s *Steering) check(p Promotion, to PromotionState) error {
	s.Who, s.Why = clean(s.Who), clean(s.Why)
	switch {
	case s.Who == "":
		return invalid("promotion %s: the audit needs who", p)
	case s.Why == "" && (s.Future || to == PromotionCancelled):
		return invalid("promotion %s: the audit needs why", p)
	}
	return p.validate()
}

// setPromotionState changes the state, writes the audit in the same transaction, and refuses to leave CANCELLED. A
// promotion of which there is neither a record nor a started event answers ErrNotFound, unless by.Future.
func (l *Ledger) setPromotionState(ctx context.Context, what string, p Promotion, to PromotionState, by Steering) error {
	if err := by.check(p, to); err != nil {
		return err
	}
	return l.update(ctx, what, &p, func(q querier, now time.Time) error {
		from, known, err := promotionState(ctx, q, p)
		switch {
		case err != nil:
			return err
		case !known:
			if err := l.bornAs(ctx, q, p, to, by.Future, now); err != nil {
				return err
			}
			from = "NEW"
		case from == PromotionCancelled && to != PromotionCancelled:
			return ErrCancelled
		case from != to:
			if _, err := q.exec(ctx, `UPDATE promotions SET state = $3, changed_at = $4 WHERE type = $1 AND promotion_id = $2`,
				string(p.Type), p.ID, string(to), now); err != nil {
				return err
			}
		}
		return writeAudit(ctx, q, now, Key{Type: p.Type, Promotion: p.ID}, Audit{Who: by.Who, Why: by.Why, Action: what,
			Detail: fmt.Sprintf("%s to %s", from, to)})
	})
}

// bornAs makes the row of a promotion that has no record yet. Nothing else is under way: the caller holds its gate.
func (l *Ledger) bornAs(ctx context.Context, q querier, p Promotion, to PromotionState, future bool, now time.Time) error {
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

// Pause stops the promotion: no payout of it is begun after Pause has returned. Calls under way end. A cancelled
// promotion answers ErrCancelled, and one that is not known ErrNotFound, unless by.Future.
func (l *Ledger) Pause(ctx context.Context, p Promotion, by Steering) error {
	return l.setPromotionState(ctx, "pause", p, PromotionPaused, by)
}

// Resume lets a paused promotion run again; the feeder refills its stream. It answers as Pause does.
func (l *Ledger) Resume(ctx context.Context, p Promotion, by Steering) error {
	return l.setPromotionState(ctx, "resume", p, PromotionRunning, by)
}

// Cancellation is what Cancel found.
type Cancellation struct {
	// Cancelled is how many payouts this call cancelled.
	Cancelled int64 `json:"cancelled"`
	// InFlight is how many payouts a worker was calling for when the cancellation took effect.
	InFlight int64 `json:"in_flight"`
	// Ambiguous is how many payouts may have been charged by an earlier call, and will be asked about.
	Ambiguous int64 `json:"ambiguous"`
}

// cancelChunk is how many rows one transaction of Cancel settles.
const cancelChunk = 500

const sqlCancellable = `SELECT target_id FROM payouts WHERE type = $1 AND promotion_id = $2 AND target_id > $3
AND settled_at IS NULL AND state IN ('PENDING', 'ERROR') ORDER BY target_id LIMIT $4`

// Cancel stops the promotion for good. No charge is requested after it has taken effect; payouts that have
// certainly not been charged become CANCELLED, all others are asked about. It may be repeated: a cancelled
// promotion is swept again. A promotion that is not known answers ErrNotFound, unless by.Future. When ctx ends before the sweep does, the promotion is cancelled all the same, and what is
// left follows by its hints.
func (l *Ledger) Cancel(ctx context.Context, p Promotion, by Steering) (Cancellation, error) {
	var c Cancellation
	if err := l.setPromotionState(ctx, "cancel", p, PromotionCancelled, by); err != nil {
		return c, err
	}
	err := l.read(ctx, "cancel", func(q querier, now time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var leased bool
			var n int64
			if err := r.Scan(&leased, &n); err != nil {
				return err
			}
			if leased {
				c.InFlight = n
			} else {
				c.Ambiguous = n
			}
			return nil
		}, `SELECT coalesce(lease_until > $3, FALSE), count(*) FROM payouts
			WHERE type = $1 AND promotion_id = $2 AND settled_at IS NULL AND state IN ('SENDING', 'AMBIGUOUS') GROUP BY 1`,
			string(p.Type), p.ID, now)
	})
	if err != nil {
		return c, err
	}
	for last := int64(0); ; {
		var keys []Key // in the order in which rows are locked
		err := l.read(ctx, "cancel", func(q querier, _ time.Time) error {
			return q.query(ctx, func(r scanner) error {
				err := r.Scan(&last)
				keys = append(keys, Key{Type: p.Type, Promotion: p.ID, Target: last})
				return err
			}, sqlCancellable, string(p.Type), p.ID, last, cancelChunk)
		})
		if err != nil || len(keys) == 0 {
			return c, err
		}
		var n int64
		err = l.patiently(ctx, want{keys: keys}, func(ctx context.Context, u unit, s *snapshot, ch *changes) error {
			n = 0
			book := l.newBook(s, ch)
			for _, k := range keys {
				row := s.rows[k]
				next, eff, _ := l.policy.apply(row.Row, event{kind: evCancel, now: s.now})
				row.Row = next
				book.add(row, eff, nil, "")
				if eff.settled {
					n++
				}
			}
			return book.close(ctx, u)
		})
		if err != nil {
			return c, l.wrap("cancel", err)
		}
		c.Cancelled += n
	}
}

// ActiveStream is a stream that should run.
type ActiveStream struct {
	Promotion
	TotalCount int64
	Paused     bool // neither polled nor cleaned up
}

const sqlActive = `SELECT s.promotion_id, s.total_count,
	coalesce((SELECT p.state FROM promotions AS p WHERE p.type = s.type AND p.promotion_id = s.promotion_id), 'RUNNING')
FROM promotion_streams AS s WHERE s.type = $1 AND s.active ORDER BY s.promotion_id`

// Active returns the streams of a type that should run, in order of promotion.
func (l *Ledger) Active(ctx context.Context, t Type) ([]ActiveStream, error) {
	var active []ActiveStream
	err := l.read(ctx, "active streams", func(q querier, _ time.Time) error {
		return q.query(ctx, func(r scanner) error {
			a := ActiveStream{Promotion: Promotion{Type: t}}
			var state string
			if err := r.Scan(&a.ID, &a.TotalCount, &state); err != nil {
				return err
			}
			a.Paused = PromotionState(state) == PromotionPaused
			active = append(active, a)
			return nil
		}, sqlActive, string(t))
	})
	return active, err
}

// Activate puts a promotion's stream on the active set, whether or not that has a free place; totalCount 0 keeps what is
// known. It is for a stream that exists and may hold entries; Admit is for all others.
func (l *Ledger) Activate(ctx context.Context, p Promotion, totalCount int64) error {
	if err := checkActivation(p, totalCount); err != nil {
		return err
	}
	return l.update(ctx, "activate", nil, func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `INSERT INTO promotion_streams AS s (type, promotion_id, active, total_count) VALUES ($1, $2, TRUE, $3)
			ON CONFLICT (type, promotion_id) DO UPDATE SET active = TRUE, waiting_since = NULL,
			total_count = CASE WHEN excluded.total_count > 0 THEN excluded.total_count ELSE s.total_count END`,
			string(p.Type), p.ID, totalCount)
		return err
	})
}

func checkActivation(p Promotion, totalCount int64) error {
	if totalCount < 0 {
		return invalid("promotion %s: the total count is %d", p, totalCount)
	}
	return p.validate()
}

// Revive is Activate for a promotion that the ledger knows; known is false, and nothing is changed, for any other.
func (l *Ledger) Revive(ctx context.Context, p Promotion) (known bool, err error) {
	err = l.read(ctx, "revive", func(q querier, _ time.Time) error {
		known = false
		return q.query(ctx, func(scanner) error { known = true; return nil }, `SELECT 1 FROM promotions WHERE type = $1 AND promotion_id = $2
			UNION ALL SELECT 1 FROM promotion_streams WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID)
	})
	if err != nil || !known {
		return false, err
	}
	return true, l.Activate(ctx, p, 0)
}

// Deactivate takes a promotion's stream off the active set and forgets its incarnation. It comes before the
// script that deletes the stream; when that answers not drained, Activate puts the stream back.
func (l *Ledger) Deactivate(ctx context.Context, p Promotion) error {
	return l.update(ctx, "deactivate", nil, func(q querier, _ time.Time) error {
		_, err := q.exec(ctx, `UPDATE promotion_streams SET active = FALSE, incarnation = '', waiting_since = NULL
			WHERE type = $1 AND promotion_id = $2 AND active`, string(p.Type), p.ID)
		return err
	})
}
