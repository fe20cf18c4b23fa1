package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
)

func (e Env) discardCommand(h *app.Host) *cobra.Command {
	var f actionFlags
	var unsettled bool
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "discard [ID…]",
		Short: "Discard dead letters; it can't be undone",
		Long: `Discard dead letters: the given ones, those of a filter, or all; it can't be undone.

It changes only the dead letters: a payout that failed stays unpaid. A dead letter about a payout that may have been
charged is refused until the payout is resolved; the reason names the command for that.`,
		Example: fmt.Sprintf(`  %[1]s deadletter discard 9c3f0e --why "the order was cancelled"
  %[1]s deadletter discard --fingerprint 51d2 --dry-run
  %[1]s deadletter discard --fingerprint 51d2 --why "from a load test"`, h.Name()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.parse(args, store.Waiting()); err != nil {
				return err
			}
			start := func(s *session, ctx context.Context, targets []store.Target) error {
				if unsettled {
					return nil
				}
				return s.replayer.StartPreviews(ctx, targets)
			}
			return e.act(h, cmd, &f, store.Waiting(), start, func(s *session) action { return &discard{s, store.By(f.by), unsettled} })
		},
	})
	f.add(cmd)
	cmd.Flags().BoolVar(&unsettled, "unsettled", false, "also those about a payout that may have been charged, or whose ledger is unavailable")
	return cmd
}

// discard is the action of the command discard.
type discard struct {
	*session
	by        store.By
	unsettled bool // also those that are not settled
}

func (x *discard) apply(ctx context.Context, id string) (Line, error) {
	if !x.unsettled {
		d, _, err := x.store.Get(ctx, id)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return Line{}, err
		}
		if err == nil && slices.Contains(store.Waiting(), d.State) { // otherwise Discard refuses
			if _, reason := x.check(ctx, d); reason != "" {
				return Line{ID: id, Result: store.OutcomeRefused, Reason: reason}, ctx.Err()
			}
		}
	}
	err := x.store.Discard(ctx, id, x.by)
	if line, unchanged := unchangedLine(id, err); unchanged {
		return line, nil
	}
	return Line{ID: id, Result: resultDiscarded}, err
}

func (x *discard) preview(ctx context.Context, d store.DeadLetter) Line {
	now, reason := x.check(ctx, d)
	line := Line{Result: resultDiscarded, Reason: now.Remains, Now: now.State}
	if reason != "" {
		line.Reason = reason
		if !x.unsettled {
			line.Result = store.OutcomeRefused
		}
	}
	return line
}

// check returns the status of a dead letter, and why it must not be discarded, or "".
func (x *discard) check(ctx context.Context, d store.DeadLetter) (now store.Status, reason string) {
	now, err := x.replayer.Preview(ctx, d)
	if err != nil {
		return now, fmt.Sprintf("it is unknown whether it is settled: %s; --unsettled discards it all the same", err)
	}
	return now, now.Unsettled
}
