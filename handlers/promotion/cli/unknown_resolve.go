package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

type resolveFlags struct {
	paid   string
	unpaid bool
	app.By
	force  bool
	dryRun bool
}

func (c commands) unknownResolve() *cobra.Command {
	var f resolveFlags
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:                   "resolve TYPE PROMOTION TARGET --paid KEY|--unpaid --why TEXT",
		DisableFlagsInUseLine: true,
		Short:                 "Record the outcome of a payout that may have been charged",
		Long: `Record the outcome of a payout that may have been charged. The evidence is shown first: each call with its
answer, and the Money API's answer about the key now.

--paid makes the payout SUCCESS and discards its dead letter. --unpaid makes it FAILED, and its dead letter may then be
replayed. The audit keeps --who, --why and the time.

The command refuses an outcome that contradicts the Money API, and changes nothing. It also refuses --unpaid:

  - when the API does not answer that it has no charge with the key,
  - when the key is older than idempotency_ttl: the API may have removed it,
  - when the last request was sent less than a lease ago: it may be in flight.

--force records the outcome anyway.

An AMBIGUOUS payout that can only be looked up (unknown list) needs --force, because the service still looks it up and may
settle it. --unpaid then also writes its dead letter. When the Money API says that the payout was charged, --force can record
only that.`,
		Example: `  millrace unknown resolve POINT 12345 777 --paid TX-42 --why "ticket 4711"
  millrace unknown resolve POINT:12345:777 --unpaid --why "ticket 7" --dry-run`,
		Args: payoutArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := payoutKey(args)
			if err != nil {
				return err
			}
			if (f.paid != "") == f.unpaid {
				return app.Usage("give either --paid with the transaction key, or --unpaid")
			}
			if err := f.Check(); err != nil {
				return err
			}
			return c.with(cmd, Services{Ledger: true, MoneyAPI: Optional}, func(ctx context.Context) error { return c.resolve(ctx, cmd, k, f) })
		},
	})
	cmd.Flags().StringVar(&f.paid, "paid", "", "it was charged, with this transaction `key`")
	cmd.Flags().BoolVar(&f.unpaid, "unpaid", false, "it was not charged and never will be")
	f.Flags(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show the evidence and what would be recorded; change nothing")
	cmd.Flags().BoolVar(&f.force, "force", false, "also when the Money API contradicts it, gives no proof, or the payout is still looked up")
	return cmd
}

func (c commands) resolve(ctx context.Context, cmd *cobra.Command, k payouts.Key, f resolveFlags) error {
	x, err := c.explanation(ctx, k)
	if err != nil {
		return err
	}
	lookupOnly := x.State == rules.Ambiguous && x.NextStep == rules.Lookup
	if x.State != rules.Unknown && !lookupOnly {
		return app.Bad("%s is %s, not UNKNOWN: there is nothing to resolve", k, x.State)
	}
	answer := c.lookUp(ctx, x)
	if err := refusal(x, answer, f, lookupOnly); err != nil {
		return app.Bad("nothing was changed: %w (evidence: millrace campaign explain %s --query-api)", err, k)
	}
	e, err := c.explained(ctx, x, answer)
	if err != nil {
		return err
	}
	if !c.h.JSON(cmd) {
		if err := e.write(c.h.Out()); err != nil {
			return err
		}
	}
	if f.dryRun {
		return c.showDryRun(cmd, e, f)
	}
	why := fmt.Sprintf("%s (the Money API says: %s)", f.Why, answer)
	if err := c.Resources.Ledger().Resolve(ctx, k, rules.Resolution{
		Done: f.paid != "", Receipt: f.paid, Who: f.Who, Why: why, Force: f.force, Route: c.Plugin + ".unknown",
	}); err != nil {
		return err
	}
	discarded, err := c.discardDeadLetter(ctx, k, f, why)
	if err != nil {
		return fmt.Errorf("%s is resolved, but its dead letter still waits: millrace deadletter discard, with its id: %w", k, err)
	}
	return c.showResolved(ctx, cmd, k, f, answer, discarded)
}

func refusal(x ledger.Explanation, answer *lookup, f resolveFlags, lookupOnly bool) error {
	if lookupOnly && !f.force {
		return fmt.Errorf("%s is AMBIGUOUS and is looked up again; if you are sure of the outcome, --force records it", x.Key)
	}
	// An AMBIGUOUS payout needs --force in any case. So --force can't mean here that it overrides
	// the Money API.
	if charged := answer.TransactionKey; lookupOnly && answer.paid() && f.paid != charged {
		return fmt.Errorf("the Money API says it is charged, transaction key %s; --paid %s --force records that, and so does the next lookup", charged, charged)
	}
	if f.force {
		return nil
	}
	if key := x.PaidLate(); key != "" && f.unpaid {
		return fmt.Errorf("a late answer says it was charged, transaction key %s; --force overrides it", key)
	}
	return answer.contradicts(f)
}

func (c commands) showDryRun(cmd *cobra.Command, e Explained, f resolveFlags) error {
	if c.h.JSON(cmd) {
		return c.h.WriteJSON(e)
	}
	state := rules.Failed
	if f.paid != "" {
		state = rules.Success
	}
	fmt.Fprintf(c.h.Out(), "\n%s would be %s, %s; nothing was changed.\n", e.Key, state, e.MoneyAPI.source(f))
	return nil
}

func (c commands) showResolved(ctx context.Context, cmd *cobra.Command, k payouts.Key, f resolveFlags, answer *lookup, discarded []string) error {
	x, err := c.Resources.Ledger().Explain(ctx, k)
	if err != nil {
		return err
	}
	e, err := c.explained(ctx, x, answer)
	if err != nil {
		return err
	}
	if c.h.JSON(cmd) {
		return c.h.WriteJSON(e)
	}
	fmt.Fprintf(c.h.Out(), "\n%s is %s now, %s.\n", k, x.State, answer.source(f))
	for _, id := range discarded {
		fmt.Fprintf(c.h.Out(), "Its dead letter %s is discarded.\n", id)
	}
	fmt.Fprintf(c.h.Out(), "Next: %s\n", app.Printable(e.Next))
	return nil
}

// discardDeadLetter discards the dead letter of a payout that is paid. The dead letter of an unpaid
// one waits for its replay.
func (c commands) discardDeadLetter(ctx context.Context, k payouts.Key, f resolveFlags, why string) ([]string, error) {
	if f.paid == "" {
		return nil, nil
	}
	return c.DeadLetters.Settled(ctx, c.Plugin, k.String(), store.By{Who: f.Who, Why: "it is paid, transaction key " + f.paid + ": " + why})
}
