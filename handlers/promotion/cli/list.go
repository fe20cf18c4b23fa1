package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/pipeline/app"
)

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
			of, err := campaign.TypeFilter(typeName)
			if err != nil {
				return err
			}
			if limit < 1 {
				return app.Usage("--limit must be > 0, got %d", limit)
			}
			return c.with(cmd, campaign.Services{Ledger: true}, func(ctx context.Context) error {
				list, err := c.List(ctx, of, limit)
				if err != nil {
					return err
				}
				return c.h.Show(cmd, list, list.Write)
			})
		},
	})
	cmd.Flags().StringVar(&typeName, "type", "", "promotions of this type only")
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of promotions")
	return cmd
}
