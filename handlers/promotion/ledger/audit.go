package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Audit is an action of an operator.
type Audit struct {
	At  time.Time `json:"at"`
	Who string    `json:"who"`
	Why string    `json:"why"`
	// Action is replay, announce, send, resolve, reveal, probe, rebuild, pause,
	// resume or cancel.
	Action string `json:"action"`
	Detail string `json:"detail"`
	// DBUser is the role of the database session (session_user), written by the server. Empty:
	// SQLite, or a row of an older version.
	DBUser string `json:"database_user,omitempty"`
}

func writeAudit(ctx context.Context, q querier, now time.Time, k payouts.Key, a Audit) error {
	_, err := q.exec(ctx, `INSERT INTO ledger_audit (at, who, why, action, type, promotion_id, target_id, detail)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, now, a.Who, a.Why, a.Action, string(k.Type), k.Promotion, k.Target, a.Detail)
	return err
}

// AuditSend records that an operator publishes a record of a payout to a topic.
func (l *Ledger) AuditSend(ctx context.Context, k payouts.Key, who, why, topic string) error {
	return l.update(ctx, "audit", nil, func(q querier, now time.Time) error {
		return writeAudit(ctx, q, now, k, Audit{Who: who, Why: why, Action: "send", Detail: "to " + topic})
	})
}

// RecordReveal records that an operator sees what is masked of a payout. A payout that is not in the ledger returns
// ErrNotFound.
func (l *Ledger) RecordReveal(ctx context.Context, k payouts.Key, who, why string) error {
	if who, why = clean(who), clean(why); who == "" || why == "" {
		return rules.Invalid("payout %s: a reveal needs who and why", k)
	}
	return l.update(ctx, "audit", nil, func(q querier, now time.Time) error {
		found := false
		if err := q.query(ctx, func(scanner) error { found = true; return nil },
			`SELECT 1 FROM payouts WHERE type = $1 AND promotion_id = $2 AND target_id = $3`, string(k.Type), k.Promotion, k.Target); err != nil {
			return err
		}
		if !found {
			return notFound(k)
		}
		return writeAudit(ctx, q, now, k, Audit{Who: who, Why: why, Action: "reveal", Detail: "the record, the request and all answers"})
	})
}

// RecordProbe records that an operator sends a charge of a payout to the Money API, to find out what it does. A promotion
// that the ledger knows returns ErrRefused, because that charge would be missing in its books, and so does a payout that
// was probed before.
func (l *Ledger) RecordProbe(ctx context.Context, k payouts.Key, by Steering) error {
	if by.Who, by.Why = clean(by.Who), clean(by.Why); by.Who == "" || by.Why == "" {
		return rules.Invalid("payout %s: a probe needs who and why", k)
	}
	promotion := k.OfPromotion()
	return l.tried(by.Try, l.update(ctx, "audit", &promotion, func(q querier, now time.Time) error {
		_, known, err := promotionState(ctx, q, promotion)
		if err != nil {
			return err
		}
		if err := q.query(ctx, func(scanner) error { known = true; return nil },
			`SELECT 1 FROM promotion_streams WHERE type = $1 AND promotion_id = $2`, string(k.Type), k.Promotion); err != nil {
			return err
		}
		if known {
			return fmt.Errorf("%w: the ledger knows the promotion %s, and a charge without a payout would be missing in its books", ErrRefused, promotion)
		}
		before, err := readAudit(ctx, q, k)
		switch {
		case err != nil:
			return err
		case slices.ContainsFunc(before, func(a Audit) bool { return a.Action == "probe" }):
			return fmt.Errorf("%w: %s was probed before", ErrRefused, k)
		case by.Try:
			return errRollback
		}
		return writeAudit(ctx, q, now, k, Audit{Who: by.Who, Why: by.Why, Action: "probe", Detail: "sent to the Money API"})
	}))
}

// Audit returns the actions on a promotion, oldest first. Explain has those on a payout.
func (l *Ledger) Audit(ctx context.Context, p payouts.Promotion) (lines []Audit, err error) {
	lines = []Audit{}
	err = l.read(ctx, "audit", func(q querier, _ time.Time) error {
		found, err := readAudit(ctx, q, payouts.Key{Type: p.Type, Promotion: p.ID})
		lines = append(lines, found...)
		return err
	})
	return lines, err
}

const sqlAudit = `SELECT at, who, why, action, detail, db_user FROM ledger_audit
WHERE type = $1 AND promotion_id = $2 AND target_id = $3 ORDER BY type, promotion_id, target_id, id`

func readAudit(ctx context.Context, q querier, k payouts.Key) (lines []Audit, err error) {
	err = q.query(ctx, func(r scanner) error {
		var a Audit
		err := r.Scan((*portable.Time)(&a.At), &a.Who, &a.Why, &a.Action, &a.Detail, &a.DBUser)
		lines = append(lines, a)
		return err
	}, sqlAudit, string(k.Type), k.Promotion, k.Target)
	return lines, err
}
