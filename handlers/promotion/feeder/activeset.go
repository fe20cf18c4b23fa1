package feeder

import (
	"context"
	"sync/atomic"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// ActiveSet is the ledger's active set of one promotion type: the promotions that have a stream.
type ActiveSet struct {
	Ledger  func() *ledger.Ledger
	Type    rules.Type
	Waiting *atomic.Bool // Options.Waiting
}

func (a ActiveSet) promotion(id int64) rules.Promotion {
	return rules.Promotion{Type: a.Type, ID: id}
}

// Active implements streams.Activations.
func (a ActiveSet) Active(ctx context.Context) ([]streams.Activation, error) {
	active, err := a.Ledger().Active(ctx, a.Type)
	if err != nil {
		return nil, err
	}
	out := make([]streams.Activation, len(active))
	for i, s := range active {
		out[i] = streams.Activation{ID: s.ID, TotalCount: s.TotalCount, Paused: s.Paused}
	}
	return out, nil
}

// Activate implements streams.Activations.
func (a ActiveSet) Activate(ctx context.Context, id int64) error {
	return a.Ledger().Activate(ctx, a.promotion(id), 0)
}

// Deactivate implements streams.Activations.
func (a ActiveSet) Deactivate(ctx context.Context, id int64) error {
	return a.Ledger().Deactivate(ctx, a.promotion(id))
}

// Admit implements streams.Options.Admit.
func (a ActiveSet) Admit(ctx context.Context, id int64) (bool, error) {
	return a.Ledger().Admit(ctx, a.promotion(id))
}

// Blocked implements streams.Options.Blocked. A promotion with a blocked stream yields its place
// while others wait for one.
func (a ActiveSet) Blocked(ctx context.Context, id int64) error {
	if !a.Waiting.Load() {
		return nil
	}
	_, err := a.Ledger().Yield(ctx, a.promotion(id))
	return err
}

// Created implements streams.Options.Created. It records the incarnation of a new stream, unless
// the ledger still has the incarnation of a lost one.
func (a ActiveSet) Created(ctx context.Context, id int64, incarnation string) error {
	_, err := a.Ledger().RecordIncarnation(ctx, a.promotion(id), incarnation)
	return err
}
