package ledger

import (
	"context"
	"fmt"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

// Resolve stores what an operator has found out about an UNKNOWN payout: SUCCESS with its
// transaction key, or FAILED. With Force it also ends an AMBIGUOUS payout that is only looked up
// (EachLookupOnly); FAILED then has a dead letter of class ClassResolved.
//
// A payout in another state returns ErrRefused. So does unpaid without Force, if a late answer
// states a charge. A payout without a row returns ErrNotFound.
func (l *Ledger) Resolve(ctx context.Context, k rules.Key, r rules.Resolution) error {
	if err := k.Validate(); err != nil {
		return err
	}
	r.TransactionKey, r.Who, r.Why = clean(r.TransactionKey), clean(r.Who), clean(r.Why)
	if err := r.Validate(k); err != nil {
		return err
	}
	w := readRequest{promotions: []rules.Promotion{k.OfPromotion()}, keys: []rules.Key{k}, lock: true}
	err := l.transact(ctx, w, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
		row := read.rows[k]
		if row == nil {
			return notFound(k)
		}
		if charged, err := paidAttempt(ctx, tx.querier(), row.ID); err != nil {
			return err
		} else if charged != "" && !r.Paid && !r.Force {
			return fmt.Errorf("ledger: payout %s: %w: a late answer states a charge: %s", k, ErrRefused, charged)
		}
		next, eff, d := l.policy.Apply(row.Row, rules.Event{Kind: rules.EventResolve, Now: read.now, Promotion: read.promotions[k.OfPromotion()], Resolution: r})
		if d.Refused != "" {
			return fmt.Errorf("ledger: payout %s: %w: %s", k, ErrRefused, d.Refused)
		}
		detail := string(row.State) + " to FAILED: not charged"
		if r.Paid {
			detail = string(row.State) + " to SUCCESS, transaction key " + r.TransactionKey
		}
		row.Row = next
		effects := l.newEffectSet(read, writes)
		effects.add(row, eff, nil, r.Route)
		if err := writeAudit(ctx, tx.querier(), read.now, k, Audit{Who: r.Who, Why: r.Why, Action: "resolve", Detail: detail}); err != nil {
			return err
		}
		return effects.writeTo(ctx, tx)
	})
	return l.wrapDatabase("resolve", err)
}
