package promotion

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline/app"
)

// steerVerb is a command that changes the state of a promotion and can be taken back.
type steerVerb struct {
	verb, short string
	do          func(*ledger.Ledger, context.Context, ledger.Promotion, ledger.Steering) error
}

// steerFlags adds --who, --why and --future to a command.
func steerFlags(cmd *cobra.Command) *ledger.Steering {
	var by ledger.Steering
	cmd.Flags().StringVar(&by.Why, "why", "", "why; kept for the audit")
	cmd.Flags().StringVar(&by.Who, "who", app.Person(), "who does it; kept for the audit")
	cmd.Flags().BoolVar(&by.Future, "future", false, "also a promotion of which no record has come yet; needs --why")
	return &by
}

// unknownYet adds to the error about an unknown promotion how it is steered nevertheless.
func unknownYet(err error) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return fmt.Errorf("%w (--future --why REASON steers a promotion before its first record)", err)
	}
	return err
}

// checkSteering refuses what the audit could not explain later.
func checkSteering(by *ledger.Steering, needsWhy bool) error {
	switch by.Why = strings.TrimSpace(by.Why); {
	case by.Who == "":
		return app.Usage("--who must name you")
	case by.Why == "" && (needsWhy || by.Future):
		return app.Usage("--why must say why; it is kept for the audit")
	}
	return nil
}

func (p *Plugin) steerCommand(h *app.Host, s steerVerb) *cobra.Command {
	var by *ledger.Steering
	cmd := h.JSONFlag(&cobra.Command{
		Use:   s.verb + " TYPE PROMOTION",
		Short: s.short,
		Args:  promotionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := onePromotion(args)
			if err != nil {
				return err
			}
			if err := checkSteering(by, false); err != nil {
				return err
			}
			return p.withLedger(h, cmd, func(ctx context.Context) error {
				if err := s.do(p.run.ledger, ctx, id, *by); err != nil {
					return unknownYet(err)
				}
				if h.JSON(cmd) {
					return h.WriteJSON(map[string]any{"type": id.Type, "promotion": id.ID, "done": s.verb})
				}
				fmt.Fprintf(h.Out(), "%s: %sd. Every instance sees it within 2 s.\n", id, s.verb)
				return nil
			})
		},
	})
	by = steerFlags(cmd)
	return cmd
}

func (p *Plugin) cancelCommand(h *app.Host) *cobra.Command {
	var by *ledger.Steering
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "cancel TYPE PROMOTION --why TEXT",
		Short: "Cancel what of a promotion has not been sent; it can't be undone",
		Args:  promotionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := onePromotion(args)
			if err != nil {
				return err
			}
			if err := checkSteering(by, true); err != nil {
				return err
			}
			return p.withLedger(h, cmd, func(ctx context.Context) error {
				c, err := p.run.ledger.Cancel(ctx, id, *by)
				if err != nil {
					return unknownYet(err)
				}
				if h.JSON(cmd) {
					return h.WriteJSON(map[string]any{"type": id.Type, "promotion": id.ID, "cancelled": c.Cancelled, "in_flight": c.InFlight, "ambiguous": c.Ambiguous})
				}
				fmt.Fprintf(h.Out(), "%s: %s payouts cancelled. %s are in flight, %s may have been charged by an earlier call: what became of them is found out, and nothing is sent again.\n",
					id, thousands(c.Cancelled), thousands(c.InFlight), thousands(c.Ambiguous))
				return nil
			})
		},
	})
	by = steerFlags(cmd)
	return cmd
}
