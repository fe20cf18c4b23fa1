package campaign

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Listed is one promotion of `campaign list --json`.
type Listed struct {
	Type      payouts.Type     `json:"type"`
	Promotion int64            `json:"promotion"`
	State     rules.GroupState `json:"state"`
	Finished  bool             `json:"finished"` // all announced payouts are accepted, and all accepted ones are settled
	CreatedAt time.Time        `json:"created_at,omitzero"`
	// TotalCount is the number that the started event announced; 0: not known.
	TotalCount int64 `json:"total_count"`
	ledger.PayoutCounts

	changedFor time.Duration
}

func (l Listed) id() payouts.Promotion { return payouts.Promotion{Type: l.Type, ID: l.Promotion} }

// resumedFor returns for how long it has run since an operator resumed it, and 0 for one that was never paused.
func (l Listed) resumedFor() time.Duration {
	return resumedFor(ledger.Counts{State: l.State, ChangedFor: l.changedFor})
}

// Listing is the value of `campaign list --json`.
type Listing struct {
	Promotions []Listed `json:"promotions"`
	More       bool     `json:"more"`
}

// List returns the promotions of a type, the highest numbers first, at most limit of them. An empty type means all.
func (e Env) List(ctx context.Context, of payouts.Type, limit int) (Listing, error) {
	l, err := e.ledger()
	if err != nil {
		return Listing{}, err
	}
	all, err := l.List(ctx, of, limit+1)
	if err != nil {
		return Listing{}, err
	}
	return listOf(all, limit), nil
}

func listOf(all []ledger.ListedPromotion, limit int) Listing {
	list := Listing{Promotions: []Listed{}, More: len(all) > limit}
	for _, p := range all[:min(len(all), limit)] {
		list.Promotions = append(list.Promotions, Listed{p.Type, p.ID, p.State, p.Finished(p.TotalCount), p.CreatedAt, p.TotalCount, p.PayoutCounts, p.ChangedFor})
	}
	return list
}
