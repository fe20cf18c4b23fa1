package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Listed is one promotion of `campaign list --json`.
type Listed struct {
	Type      rules.Type           `json:"type"`
	Promotion int64                `json:"promotion"`
	State     rules.PromotionState `json:"state"`
	Finished  bool                 `json:"finished"` // all accepted payouts are settled
	CreatedAt time.Time            `json:"created_at,omitzero"`
	Accepted  int64                `json:"accepted"`
	Paid      int64                `json:"paid"`
	Failed    int64                `json:"failed"`
	Unknown   int64                `json:"unknown"`
	Cancelled int64                `json:"cancelled"`
	Pending   int64                `json:"pending"`
}

// promotionList is what `campaign list --json` writes.
type promotionList struct {
	Promotions []Listed `json:"promotions"`
	More       bool     `json:"more"`
}

func (c commands) list() *cobra.Command {
	var typeName string
	var limit int
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "list",
		Short: "List all promotions of the ledger, finished ones included, highest number first",
		Example: `  millrace campaign list
  millrace campaign list --type POINT --limit 10`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var of rules.Type
			if typeName != "" {
				t, err := typeNamed("--type", typeName)
				if err != nil {
					return err
				}
				of = rules.Type(t.Name)
			}
			if limit < 1 {
				return app.Usage("--limit must be > 0, got %d", limit)
			}
			return c.with(cmd, forLedger(), func(ctx context.Context) error {
				all, err := c.Resources.Ledger().List(ctx, of, limit+1)
				if err != nil {
					return err
				}
				list := listOf(all, limit)
				if c.h.JSON(cmd) {
					return c.h.WriteJSON(list)
				}
				return c.showList(list)
			})
		},
	})
	cmd.Flags().StringVar(&typeName, "type", "", "promotions of this type only")
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of promotions")
	return cmd
}

// listOf returns the first limit promotions.
func listOf(all []ledger.ListedPromotion, limit int) promotionList {
	list := promotionList{Promotions: []Listed{}, More: len(all) > limit}
	for _, p := range all[:min(len(all), limit)] {
		accepted := p.Paid + p.Failed + p.Unknown + p.Cancelled + p.Pending
		list.Promotions = append(list.Promotions, Listed{Type: p.Type, Promotion: p.ID, State: p.State, Finished: p.Pending == 0 && accepted > 0, CreatedAt: p.CreatedAt,
			Accepted: accepted, Paid: p.Paid, Failed: p.Failed, Unknown: p.Unknown, Cancelled: p.Cancelled, Pending: p.Pending})
	}
	return list
}

func (c commands) showList(list promotionList) error {
	if len(list.Promotions) == 0 {
		fmt.Fprintln(c.h.Out(), "The ledger has no promotions.")
		return nil
	}
	w := table(c.h.Out())
	fmt.Fprintln(w, "PROMOTION\tSTATE\tCREATED\tACCEPTED\tPAID\tFAILED\tUNKNOWN\tCANCELLED\tPENDING")
	for _, p := range list.Promotions {
		state := string(p.State)
		if p.Finished && p.State == rules.PromotionRunning {
			state = "FINISHED"
		}
		created := "-"
		if !p.CreatedAt.IsZero() {
			created = p.CreatedAt.UTC().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s:%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Type, p.Promotion, state, created, app.Thousands(p.Accepted), app.Thousands(p.Paid),
			app.Thousands(p.Failed), app.Thousands(p.Unknown), app.Thousands(p.Cancelled), app.Thousands(p.Pending))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if list.More {
		fmt.Fprintf(c.h.Out(), "There are more than %s; --limit shows them.\n", app.Plural(int64(len(list.Promotions)), "promotion"))
	}
	return nil
}
