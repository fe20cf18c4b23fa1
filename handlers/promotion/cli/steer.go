package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/app"
)

func (c commands) pause() *cobra.Command {
	return c.changeState("pause", "Stop paying a promotion; nothing is lost, and resume continues", (*ledger.Ledger).Pause)
}

func (c commands) resume() *cobra.Command {
	return c.changeState("resume", "Continue to pay a paused promotion", (*ledger.Ledger).Resume)
}

// changeState is a command that changes the state of a promotion. Its effect can be reversed.
func (c commands) changeState(verb, short string,
	change func(*ledger.Ledger, context.Context, payouts.Promotion, ledger.Steering) error,
) *cobra.Command {
	return c.steering(&cobra.Command{
		Use:     verb + " TYPE PROMOTION --why REASON",
		Short:   short,
		Example: "  millrace campaign " + verb + ` POINT 12345 --why "ticket 4711"`,
	}, func(ctx context.Context, cmd *cobra.Command, id payouts.Promotion, by ledger.Steering) error {
		if err := change(c.Resources.Ledger(), ctx, id, by); err != nil {
			return err
		}
		return c.showLine(cmd, map[string]any{"type": id.Type, "promotion": id.ID, "done": verb},
			"%s: %sd. All instances apply it within 2 s.", id, verb)
	})
}

func (c commands) cancel() *cobra.Command {
	return c.steering(&cobra.Command{
		Use:     "cancel TYPE PROMOTION --why REASON",
		Short:   "Cancel all payouts that were not sent yet; irreversible",
		Example: `  millrace campaign cancel POINT 12345 --why "wrong amounts, ticket 4711"`,
	}, func(ctx context.Context, cmd *cobra.Command, id payouts.Promotion, by ledger.Steering) error {
		done, err := c.Resources.Ledger().Cancel(ctx, id, by)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s: %s cancelled.", id, app.Plural(done.Cancelled, "payout"))
		if done.InFlight+done.Ambiguous > 0 {
			text += fmt.Sprintf("\nIn flight: %s. Perhaps charged by an earlier call: %s. The service looks these up and sends nothing again.",
				app.Thousands(done.InFlight), app.Thousands(done.Ambiguous))
		}
		return c.showLine(cmd, map[string]any{
			"type": id.Type, "promotion": id.ID, "cancelled": done.Cancelled, "in_flight": done.InFlight, "ambiguous": done.Ambiguous,
		}, "%s", text)
	})
}

// steering completes a command on a promotion with an audit: its arguments, and the flags --who,
// --why and --future.
func (c commands) steering(cmd *cobra.Command,
	do func(context.Context, *cobra.Command, payouts.Promotion, ledger.Steering) error,
) *cobra.Command {
	var by app.By
	var future bool
	cmd.Args = promotionArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := promotionID(args)
		if err != nil {
			return err
		}
		if err := by.Check(); err != nil {
			return err
		}
		return c.withLedger(cmd, func(ctx context.Context, l *ledger.Ledger) error {
			err := do(ctx, cmd, id, ledger.Steering{Who: by.Who, Why: by.Why, Future: future})
			if errors.Is(err, ledger.ErrNotFound) {
				return fmt.Errorf("%w (--future applies it before the first record)", err)
			}
			if errors.Is(err, ledger.ErrFinished) {
				return notCancelled(ctx, l, id, err)
			}
			return err
		})
	}
	by.Flags(cmd)
	cmd.Flags().BoolVar(&future, "future", false, "apply it to records that are still to come, although the promotion has none so far or is paid completely")
	return c.h.JSONFlag(cmd)
}

// notCancelled says in which state a promotion stays that has nothing to cancel: it may be paused.
func notCancelled(ctx context.Context, l *ledger.Ledger, id payouts.Promotion, err error) error {
	const future = "--future cancels records that are still to come"
	s, failed := l.Status(ctx, id)
	if failed != nil {
		return fmt.Errorf("%w; its state is unchanged (%s)", err, future)
	}
	return fmt.Errorf("%w; it stays %s (%s)", err, promotionState(s.State, s.Finished()), future)
}

func (c commands) rebuild() *cobra.Command {
	var by app.By
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "rebuild TYPE PROMOTION --why REASON",
		Short: "Enqueue the payouts of a promotion's stream again",
		Long: `Enqueue all payouts again whose queue location is the promotion's stream.

The feeder detects a lost stream by itself. This command is for a stream that was damaged in another way. It is safe at any
time: the stream may contain an entry twice, and the ledger ignores the second one.`,
		Example: `  millrace campaign rebuild POINT 12345 --why "entries deleted by hand"`,
		Args:    promotionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := promotionID(args)
			if err != nil {
				return err
			}
			if err := by.Check(); err != nil {
				return err
			}
			return c.withLedger(cmd, func(ctx context.Context, l *ledger.Ledger) error {
				n, err := l.Rebuild(ctx, id, by.Who, by.Why)
				if err != nil {
					return err
				}
				return c.showLine(cmd, map[string]any{"type": id.Type, "promotion": id.ID, "enqueued_again": n},
					"%s: the feeder of a running instance enqueues %s again within %s, or after a resume if the promotion is paused.",
					id, app.Plural(n, "payout"), c.Settings().FeederInterval)
			})
		},
	})
	by.Flags(cmd)
	return cmd
}
