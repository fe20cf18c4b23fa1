package feeder

import (
	"context"
	"sync/atomic"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/streams"
)

// ActiveSet is the ledger's active set of one promotion type: the promotions that have a stream.
type ActiveSet struct {
	Ledger  func() *ledger.Ledger
	Type    payouts.Type
	Waiting *atomic.Bool // Options.Waiting
}

// Active implements streams.Activations.
func (a ActiveSet) Active(ctx context.Context) ([]streams.Activation, error) {
	active, err := a.Ledger().Active(ctx, a.Type)
	if err != nil {
		return nil, err
	}
	out := make([]streams.Activation, len(active))
	for i, s := range active {
		out[i] = streams.Activation{ID: s.StreamID(), TotalCount: s.TotalCount, Paused: s.Paused}
	}
	return out, nil
}

// Activate implements streams.Activations.
func (a ActiveSet) Activate(ctx context.Context, id string) error {
	p, err := payouts.PromotionOfStream(a.Type, id)
	if err != nil {
		return err
	}
	return a.Ledger().Activate(ctx, p, 0)
}

// Deactivate implements streams.Activations.
func (a ActiveSet) Deactivate(ctx context.Context, id string) error {
	p, err := payouts.PromotionOfStream(a.Type, id)
	if err != nil {
		return err
	}
	return a.Ledger().Deactivate(ctx, p)
}

// Admit implements streams.Options.Admit.
func (a ActiveSet) Admit(ctx context.Context, id string) (bool, error) {
	p, err := payouts.PromotionOfStream(a.Type, id)
	if err != nil {
		return false, err
	}
	return a.Ledger().Admit(ctx, p)
}

// Blocked implements streams.Options.Blocked. A promotion with a blocked stream yields its place
// while others wait for one.
func (a ActiveSet) Blocked(ctx context.Context, id string) error {
	if !a.Waiting.Load() {
		return nil
	}
	p, err := payouts.PromotionOfStream(a.Type, id)
	if err != nil {
		return err
	}
	_, err = a.Ledger().Yield(ctx, p)
	return err
}

// Created implements streams.Options.Created. It records the incarnation of a new stream, unless
// the ledger still has the incarnation of a lost one.
func (a ActiveSet) Created(ctx context.Context, id, incarnation string) error {
	p, err := payouts.PromotionOfStream(a.Type, id)
	if err != nil {
		return err
	}
	_, err = a.Ledger().RecordIncarnation(ctx, p, incarnation)
	return err
}

// Deleted implements streams.Options.Deleted.
func (a ActiveSet) Deleted(ctx context.Context, id, incarnation string) error {
	p, err := payouts.PromotionOfStream(a.Type, id)
	if err != nil {
		return err
	}
	return a.Ledger().Retire(ctx, p, incarnation)
}
