package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/pipeline/app"
)

func (c commands) pause() *cobra.Command {
	return c.changeState("pause", "Stop paying a promotion; nothing is lost, and resume continues", (*ledger.Ledger).Pause)
}

func (c commands) resume() *cobra.Command {
	return c.changeState("resume", "Continue to pay a paused promotion", (*ledger.Ledger).Resume)
}

// changeState is a command that changes the state of a promotion. Its effect can be reversed.
func (c commands) changeState(verb, short string, change func(*ledger.Ledger, context.Context, rules.Promotion, ledger.Steering) error) *cobra.Command {
	var by *ledger.Steering
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:     verb + " TYPE PROMOTION",
		Short:   short,
		Example: "  millrace campaign " + verb + ` POINT 12345 --why "ticket 4711"`,
		Args:    promotionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := promotionID(args)
			if err != nil {
				return err
			}
			if err := checkSteering(by, false); err != nil {
				return err
			}
			return c.with(cmd, forLedger(), func(ctx context.Context) error {
				if err := change(c.Resources.Ledger(), ctx, id, *by); err != nil {
					return explainUnknown(err)
				}
				if c.h.JSON(cmd) {
					return c.h.WriteJSON(map[string]any{"type": id.Type, "promotion": id.ID, "done": verb})
				}
				fmt.Fprintf(c.h.Out(), "%s: %sd. All instances apply it within 2 s.\n", id, verb)
				return nil
			})
		},
	})
	by = steeringFlags(cmd)
	return cmd
}

func (c commands) cancel() *cobra.Command {
	var by *ledger.Steering
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:     "cancel TYPE PROMOTION --why TEXT",
		Short:   "Cancel all payouts of a promotion that were not sent yet; irreversible",
		Example: `  millrace campaign cancel POINT 12345 --why "wrong amounts, ticket 4711"`,
		Args:    promotionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := promotionID(args)
			if err != nil {
				return err
			}
			if err := checkSteering(by, true); err != nil {
				return err
			}
			return c.with(cmd, forLedger(), func(ctx context.Context) error {
				done, err := c.Resources.Ledger().Cancel(ctx, id, *by)
				if err != nil {
					return explainUnknown(err)
				}
				if c.h.JSON(cmd) {
					return c.h.WriteJSON(map[string]any{"type": id.Type, "promotion": id.ID, "cancelled": done.Cancelled, "in_flight": done.InFlight, "ambiguous": done.Ambiguous})
				}
				fmt.Fprintf(c.h.Out(), "%s: %s cancelled.\n", id, app.Plural(done.Cancelled, "payout"))
				if done.InFlight+done.Ambiguous > 0 {
					fmt.Fprintf(c.h.Out(), "In flight: %s. Perhaps charged by an earlier call: %s. The service looks these up and sends nothing again.\n",
						app.Thousands(done.InFlight), app.Thousands(done.Ambiguous))
				}
				return nil
			})
		},
	})
	by = steeringFlags(cmd)
	return cmd
}

// steeringFlags adds --who, --why and --future to a command.
func steeringFlags(cmd *cobra.Command) *ledger.Steering {
	var by ledger.Steering
	cmd.Flags().StringVar(&by.Why, "why", "", "the reason, for the audit")
	cmd.Flags().StringVar(&by.Who, "who", app.Person(), "your name, for the audit")
	cmd.Flags().BoolVar(&by.Future, "future", false, "also a promotion without any record so far; needs --why")
	return &by
}

// checkSteering refuses an incomplete audit line.
func checkSteering(by *ledger.Steering, needsWhy bool) error {
	switch by.Why = strings.TrimSpace(by.Why); {
	case by.Who == "":
		return app.Usage("--who must be your name")
	case by.Why == "" && (needsWhy || by.Future):
		return app.Usage("--why must be the reason; it is kept for the audit")
	}
	return nil
}

// explainUnknown adds the flag for a promotion that the ledger does not have yet to its error.
func explainUnknown(err error) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return fmt.Errorf("%w (--future --why REASON applies it before the first record)", err)
	}
	return err
}
