package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
)

func (c commands) explain() *cobra.Command {
	var queryAPI bool
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "explain TYPE PROMOTION TARGET",
		Short: "Show the history of one payout, and the next step",
		Example: `  millrace campaign explain POINT 12345 777
  millrace campaign explain POINT:12345:777 --query-api`,
		Args: payoutArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := campaign.PayoutOf(args)
			if err != nil {
				return err
			}
			return c.with(cmd, campaign.Services{Ledger: true, Streams: true, MoneyAPI: required(queryAPI)}, func(ctx context.Context) error {
				e, err := c.Explain(ctx, k, queryAPI)
				if err != nil {
					return err
				}
				return c.h.Show(cmd, e, e.Write)
			})
		},
	})
	cmd.Flags().BoolVar(&queryAPI, "query-api", false, "also query the Money API for the charge")
	return cmd
}

func promotionArgs(_ *cobra.Command, args []string) error { return campaign.CheckPromotion(args) }

func payoutArgs(_ *cobra.Command, args []string) error { return campaign.CheckPayout(args) }
