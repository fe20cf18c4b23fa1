package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Listed is one promotion of `campaign list --json`.
type Listed struct {
	Type      payouts.Type     `json:"type"`
	Promotion int64            `json:"promotion"`
	State     rules.GroupState `json:"state"`
	Finished  bool             `json:"finished"` // all accepted payouts are settled
	CreatedAt time.Time        `json:"created_at,omitzero"`
	ledger.PayoutCounts
}

type promotionList struct {
	Promotions []Listed `json:"promotions"`
	More       bool     `json:"more"`
}

func (c commands) list() *cobra.Command {
	var typeName string
	var limit int
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "list",
		Short: "List all promotions, also finished ones, highest number first",
		Example: `  millrace campaign list
  millrace campaign list --type POINT --limit 10`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			of, err := typeFilter(typeName)
			if err != nil {
				return err
			}
			if limit < 1 {
				return app.Usage("--limit must be > 0, got %d", limit)
			}
			return c.withLedger(cmd, func(ctx context.Context, l *ledger.Ledger) error {
				all, err := l.List(ctx, of, limit+1)
				if err != nil {
					return err
				}
				list := listOf(all, limit)
				return c.h.Show(cmd, list, list.write)
			})
		},
	})
	cmd.Flags().StringVar(&typeName, "type", "", "promotions of this type only")
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of promotions")
	return cmd
}

func listOf(all []ledger.ListedPromotion, limit int) promotionList {
	list := promotionList{Promotions: []Listed{}, More: len(all) > limit}
	for _, p := range all[:min(len(all), limit)] {
		list.Promotions = append(list.Promotions, Listed{p.Type, p.ID, p.State, p.Finished(), p.CreatedAt, p.PayoutCounts})
	}
	return list
}

func (list promotionList) write(out io.Writer) error {
	if len(list.Promotions) == 0 {
		fmt.Fprintln(out, "The ledger has no promotions.")
		return nil
	}
	w := app.Table(out)
	fmt.Fprintln(w, "PROMOTION\tSTATE\tCREATED\tACCEPTED\tPAID\tFAILED\tUNKNOWN\tCANCELLED\tPENDING")
	for _, p := range list.Promotions {
		created := "-"
		if !p.CreatedAt.IsZero() {
			created = p.CreatedAt.UTC().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s:%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Type, p.Promotion, promotionState(p.State, p.Finished), created, app.Thousands(p.Accepted), app.Thousands(p.Paid),
			app.Thousands(p.Failed), app.Thousands(p.Unknown), app.Thousands(p.Cancelled), app.Thousands(p.Pending))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if list.More {
		fmt.Fprintf(out, "There are more than %s; --limit shows them.\n", app.Plural(int64(len(list.Promotions)), "promotion"))
	}
	return nil
}
