package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/app"
)

const watchInterval = 2 * time.Second

func (c commands) status() *cobra.Command {
	var watch bool
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:        "status [TYPE PROMOTION]",
		SuggestFor: []string{"unpaid"},
		Short:      "Show one promotion, or all that are unfinished or paused",
		Example: `  millrace campaign status
  millrace campaign status --watch
  millrace campaign status POINT 12345`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return promotionArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var only []payouts.Promotion
			if len(args) > 0 {
				id, err := campaign.PromotionOf(args)
				if err != nil {
					return err
				}
				only = []payouts.Promotion{id}
			}
			if watch && c.h.JSON(cmd) {
				return app.Usage("--watch and --json exclude each other")
			}
			return c.with(cmd, campaign.Services{Ledger: true, Streams: true}, func(ctx context.Context) error {
				if watch {
					return repeat(ctx, c.h.Out(), c.h.IsTerminal(c.h.Out()), func() error { return withoutPartial(c.showStatus(ctx, cmd, only)) })
				}
				return c.showStatus(ctx, cmd, only)
			})
		},
	})
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again every "+watchInterval.String()+", until Ctrl-C")
	return cmd
}

// repeat calls show every watchInterval until ctx ends. It clears the screen of a terminal first.
func repeat(ctx context.Context, out io.Writer, terminal bool, show func() error) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		if terminal {
			fmt.Fprint(out, "\x1b[H\x1b[2J") // cursor to the top, clear the screen
		}
		if err := show(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-tick.C:
			fmt.Fprintln(out)
		case <-ctx.Done():
			return nil
		}
	}
}

// partial is the error of a status that was shown, and is not complete.
type partial struct{ error }

func (p partial) Unwrap() error { return p.error }

// withoutPartial is for a status that is shown again and again: a server that is away may come back.
func withoutPartial(err error) error {
	if _, shown := errors.AsType[partial](err); shown {
		return nil
	}
	return err
}

func (c commands) showStatus(ctx context.Context, cmd *cobra.Command, only []payouts.Promotion) error {
	all, away := c.Status(ctx, only...)
	if away != nil && all.Promotions == nil {
		return away
	}
	if err := c.h.Show(cmd, all, all.Write); err != nil || away == nil {
		return err
	}
	return partial{away}
}
