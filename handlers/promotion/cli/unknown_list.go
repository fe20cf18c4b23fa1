package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/pipeline/app"
)

func (c commands) unknownList() *cobra.Command {
	var f campaign.UnknownFilter
	var typeName string
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "list",
		Short: "List the payouts that may have been charged",
		Long: `List the payouts that may have been charged.

UNKNOWN payouts come first: an operator must resolve them. AMBIGUOUS payouts that can only be looked up come after them. The
service looks them up again, at least every ledger.retry.max. If such a payout is old, probably a proxy answers instead of the
Money API; unknown resolve --force ends it. The command considers only the 1,000 oldest AMBIGUOUS payouts.

A send uses no attempt, and a lookup none of the lookups, when the API refused to work for now or a proxy may have answered,
so calls may have been made where 0 are used.`,
		Example: `  millrace unknown list
  millrace unknown list --type POINT --older-than 24h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if f.Type, err = campaign.TypeFilter(typeName); err != nil {
				return err
			}
			if f.Promotion < 0 || f.OlderThan < 0 || f.Limit < 1 {
				return app.Usage("--promotion and --older-than must not be negative, and --limit must be > 0")
			}
			return c.with(cmd, campaign.Services{Ledger: true}, func(ctx context.Context) error {
				list, err := c.Unknown(ctx, f)
				if err != nil {
					return err
				}
				return c.h.Show(cmd, list, list.Write)
			})
		},
	})
	cmd.Flags().StringVar(&typeName, "type", "", "payouts of this type only")
	cmd.Flags().Int64Var(&f.Promotion, "promotion", 0, "payouts of this promotion `id` only")
	cmd.Flags().DurationVar(&f.OlderThan, "older-than", 0, "payouts of at least this age only, such as 24h")
	cmd.Flags().IntVar(&f.Limit, "limit", 1000, "maximum number of payouts")
	return cmd
}
