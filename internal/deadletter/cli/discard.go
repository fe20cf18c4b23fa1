package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/operate"
)

func (e Deps) discardAction() operate.Action {
	about := operate.About{
		Name:  "deadletter discard",
		Short: "Discard dead letters; it can't be undone",
		Long: `Discard dead letters: the given ones, those of a filter, or all; it can't be undone.

It changes only the dead letters: a payout that failed stays unpaid. A dead letter about a payout that may have been
charged is refused until the payout is resolved; the reason names the command for that.`,
		Examples: []string{
			`deadletter discard 9c3f0e --why "the order was cancelled"`,
			`deadletter discard --fingerprint 51d2 --dry-run`,
			`deadletter discard --fingerprint 51d2 --why "from a load test"`,
		},
		Fields: actionFields(operate.Field{Name: "unsettled", Type: operate.Switch,
			Help: "also those about a payout that may have been charged, or whose ledger is unavailable"}),
	}
	states := func(operate.Input) []store.State { return store.Waiting() }
	return e.action(about, states, func(w *work, in operate.Input) step { return &discard{w, in.Switch("unsettled")} })
}

// discard is the step of the action of this name.
type discard struct {
	*work
	unsettled bool // also those that are not settled
}

func (x *discard) startWork(ctx context.Context, targets []store.Target) error {
	if x.unsettled {
		return nil
	}
	return x.replayer.StartPreviews(ctx, targets)
}

func (x *discard) apply(ctx context.Context, id string) (Line, error) {
	if !x.unsettled {
		d, _, err := x.store.Get(ctx, id)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return Line{}, err
		}
		if err == nil && slices.Contains(store.Waiting(), d.State) { // otherwise Discard refuses
			if _, reason := x.settled(ctx, d); reason != "" {
				return Line{ID: id, Result: store.OutcomeRefused, Reason: reason}, ctx.Err()
			}
		}
	}
	err := x.store.Discard(ctx, id, x.by())
	if line, unchanged := unchangedLine(id, err); unchanged {
		return line, nil
	}
	return Line{ID: id, Result: resultDiscarded}, err
}

func (x *discard) preview(ctx context.Context, d store.DeadLetter) Line {
	now, reason := x.settled(ctx, d)
	line := Line{Result: resultDiscarded, Reason: now.Remains, Now: now.State}
	if reason != "" {
		line.Reason = reason
		if !x.unsettled {
			line.Result = store.OutcomeRefused
		}
	}
	return line
}

// settled returns the status of a dead letter, and why it must not be discarded, or "".
func (x *discard) settled(ctx context.Context, d store.DeadLetter) (now store.Status, reason string) {
	now, err := x.replayer.Preview(ctx, d)
	if err != nil {
		return now, fmt.Sprintf("it is unknown whether it is settled: %s; --unsettled discards it all the same", err)
	}
	return now, now.Unsettled
}
