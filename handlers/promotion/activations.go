package promotion

import (
	"context"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/streams"
)

// activations answers which streams of a type should run: the ledger's active set.
type activations struct {
	run  *engine
	kind ledger.Type
}

// Active implements streams.Activations.
func (a activations) Active(ctx context.Context) ([]streams.Activation, error) {
	active, err := a.run.ledger.Active(ctx, a.kind)
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
func (a activations) Activate(ctx context.Context, id int64) error {
	return a.run.ledger.Activate(ctx, ledger.Promotion{Type: a.kind, ID: id}, 0)
}

// admit implements streams.Options.Admit.
func (a activations) admit(ctx context.Context, id int64) (bool, error) {
	return a.run.ledger.Admit(ctx, ledger.Promotion{Type: a.kind, ID: id})
}

// blocked implements streams.Options.Blocked: the promotion yields its place while others wait for one.
func (a activations) blocked(ctx context.Context, id int64) error {
	if !a.run.crowded.Load() {
		return nil
	}
	_, err := a.run.ledger.Yield(ctx, ledger.Promotion{Type: a.kind, ID: id})
	return err
}

// Deactivate implements streams.Activations.
func (a activations) Deactivate(ctx context.Context, id int64) error {
	return a.run.ledger.Deactivate(ctx, ledger.Promotion{Type: a.kind, ID: id})
}

// created records the incarnation of a new stream, unless one is on record: that of a stream which was lost.
func (a activations) created(ctx context.Context, id int64, incarnation string) error {
	_, err := a.run.ledger.Adopt(ctx, ledger.Promotion{Type: a.kind, ID: id}, incarnation)
	return err
}

var _ streams.Activations = activations{}
