package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline/app"
)

func (c commands) rebuild() *cobra.Command {
	by := app.By{Why: "on demand"}
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "rebuild TYPE PROMOTION",
		Short: "Enqueue all payouts again whose queue location is the promotion's stream",
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
