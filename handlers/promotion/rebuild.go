package promotion

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline/app"
)

func (p *Plugin) rebuildCommand(h *app.Host) *cobra.Command {
	var who, why string
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "rebuild TYPE PROMOTION",
		Short: "Enqueue again what is believed to be in a promotion's stream",
		Long: `Enqueue again what is believed to be in a promotion's stream.

The feeder notices a lost stream by itself; this is for a stream that was damaged in another way. It is safe at any
time: at worst the stream holds an entry twice, and the ledger lets the second one do nothing.`,
		Args: promotionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := onePromotion(args)
			if err != nil {
				return err
			}
			if who == "" || why == "" {
				return app.Usage("--who and --why must not be empty")
			}
			return p.withLedger(h, cmd, func(ctx context.Context) error {
				n, err := p.run.ledger.Rebuild(ctx, id, who, why)
				if err != nil {
					return err
				}
				if h.JSON(cmd) {
					return h.WriteJSON(map[string]any{"type": id.Type, "promotion": id.ID, "enqueued_again": n})
				}
				fmt.Fprintf(h.Out(), "%s: %s payouts are enqueued again by the feeder of a running instance, which looks every %s; those of a paused promotion when it is resumed.\n",
					id, thousands(n), p.config.Feeder.Interval)
				return nil
			})
		},
	})
	cmd.Flags().StringVar(&why, "why", "on demand", "kept for the audit")
	cmd.Flags().StringVar(&who, "who", app.Person(), "kept for the audit")
	return cmd
}
