package ledger

import (
	"context"
	"fmt"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Resolve stores what an operator has found out about an UNKNOWN payout: SUCCESS with its
// transaction key, or FAILED. With Force it also ends an AMBIGUOUS payout that is only looked up
// (EachLookupOnly); FAILED then has a dead letter of class ClassResolved.
//
// A payout in another state returns ErrRefused. So does unpaid without Force, if a late answer
// states a charge. A payout without a row returns ErrNotFound.
func (l *Ledger) Resolve(ctx context.Context, k payouts.Key, r rules.Resolution) error {
	if err := k.Validate(); err != nil {
		return err
	}
	r.Receipt, r.Who, r.Why = clean(r.Receipt), clean(r.Who), clean(r.Why)
	if err := r.Validate(); err != nil {
		return err
	}
	w := readRequest{promotions: []payouts.Promotion{k.OfPromotion()}, keys: []payouts.Key{k}, lock: true}
	err := l.transact(ctx, w, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
		row := read.rows[k]
		if row == nil {
			return notFound(k)
		}
		if charged, err := paidAttempt(ctx, tx.querier(), row.ID); err != nil {
			return err
		} else if charged != "" && !r.Done && !r.Force {
			return fmt.Errorf("ledger: payout %s: %w: a late answer states a charge: %s", k, ErrRefused, charged)
		}
		next, eff, d := row.Row.Apply(l.policy, rules.Event{Kind: rules.EventResolve, Now: read.now, Group: read.promotions[k.OfPromotion()], Resolution: r})
		if d.Refused != 0 {
			return fmt.Errorf("ledger: payout %s: %w: %s", k, ErrRefused, refusal(d.Refused, row.Row))
		}
		detail := string(row.State) + " to FAILED: not charged"
		if r.Done {
			detail = string(row.State) + " to SUCCESS, transaction key " + r.Receipt
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

// refusal is the reason for which the rules refuse a replay or a resolution of a payout.
func refusal(r rules.Refusal, row payouts.Row) string {
	switch r {
	case rules.RefusedDone:
		return "it is paid, transaction key " + row.Receipt
	case rules.RefusedCancelled:
		return "it was cancelled with its promotion"
	case rules.RefusedUnsettled:
		return "it is " + string(row.State) + ": it is being paid"
	case rules.RefusedGroupCancelled:
		return "its promotion is cancelled"
	case rules.RefusedNoCall:
		return "it may have been charged, and no call can find that out: look at the far side and resolve it"
	case rules.RefusedNotUnknown:
		return "it is " + string(row.State) + ", not UNKNOWN"
	case rules.RefusedLookup:
		return "it is AMBIGUOUS, and will be looked up again; only force ends that"
	}
	return ""
}
