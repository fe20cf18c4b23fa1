package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/handlers/promotion/reconcile"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/kafka"
	oncereconcile "github.com/millrace-io/millrace/plugins/once/reconcile"
)

type reconcileFlags struct {
	csv            string
	all            bool
	noKafka, noAPI bool
	lag            time.Duration
}

func (c commands) reconcile() *cobra.Command {
	var f reconcileFlags
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "reconcile TYPE PROMOTION",
		Short: "Compare Kafka, the ledger and the Money API, target by target",
		Long: `Compare the records in Kafka, the payouts in the ledger and the charges of the Money API, target by target.

The books balance when all records are accepted, all payouts are settled, and each paid target was charged once. Only then
the exit code is 0. The report is a snapshot: what changes after the start counts as pending.

The command reads the complete publish topic of the type, which takes long for a large topic; --no-kafka leaves it out. The
Money API has no call that lists charges. The simulated API has one. For another API, change cli/charges.go, or compare
Kafka with the ledger alone: --no-money. Memory does not depend on the number of targets.`,
		Example: `  millrace campaign reconcile POINT 12345
  millrace campaign reconcile POINT 12345 --csv differences.csv
  millrace campaign reconcile POINT 12345 --no-money`,
		Args: promotionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := campaign.PromotionOf(args)
			if err != nil {
				return err
			}
			switch {
			case f.all && f.csv == "":
				return app.Usage("--all needs --csv")
			case f.lag < 0:
				return app.Usage("--lag must not be negative")
			case f.noKafka && f.noAPI:
				return app.Usage("--no-kafka and --no-money leave nothing to compare the ledger with")
			}
			return c.with(cmd, campaign.Services{Ledger: true, Kafka: !f.noKafka, MoneyAPI: required(!f.noAPI)}, func(ctx context.Context) error { return c.runReconcile(ctx, cmd, id, f) })
		},
	})
	cmd.Flags().StringVar(&f.csv, "csv", "", "write one line per target that differs to this `file`")
	cmd.Flags().BoolVar(&f.all, "all", false, "with --csv: one line for every target")
	cmd.Flags().BoolVar(&f.noKafka, "no-kafka", false, "do not read Kafka")
	cmd.Flags().BoolVar(&f.noAPI, "no-money", false, "do not read the charges of the Money API")
	cmd.Flags().DurationVar(&f.lag, "lag", 10*time.Second, "a record published less than this before the start counts as pending, not as lost")
	return cmd
}

func (c commands) runReconcile(ctx context.Context, cmd *cobra.Command, id payouts.Promotion, f reconcileFlags) error {
	t, _ := promotiontype.ByName(string(id.Type))
	table := &reconcile.Table{Path: f.csv, Promotion: id, All: f.all, Kafka: !f.noKafka, MoneyAPI: !f.noAPI}
	if err := table.Check(); err != nil {
		return app.Usage("--csv: %s", err)
	}
	in := reconcile.Input{Type: t, Promotion: id.ID, Lag: f.lag, Each: table.Write}
	if !f.noKafka {
		in.Records = c.scan
	}
	if !f.noAPI {
		in.Charges = c.charges(ctx, t, id.ID)
	}
	r, err := c.compare(ctx, in)
	if err = errors.Join(err, table.Close()); err != nil {
		return err
	}
	err = c.h.Show(cmd, r, r.Write)
	if problem := r.Problem(); err == nil && problem != nil {
		return &app.ExitError{Code: app.ExitBad, Err: problem}
	}
	return err
}

// scan is Kafka.Scan with a plain error for a topic that does not exist.
func (c commands) scan(ctx context.Context, topic string, each func(kafka.Scanned) error) (kafka.Scan, error) {
	scan, err := c.Kafka.Scan(ctx, topic, each)
	if errors.Is(err, kafka.ErrTopicMissing) {
		return scan, app.Bad("Kafka has no topic %s: no record was published and no service of these settings has run yet. --no-kafka compares the ledger with the Money API alone", topic)
	}
	return scan, err
}

// compare fills in the ledger's part of an input and compares. The error is ledger.ErrNotFound when
// no source has anything of the promotion.
func (c commands) compare(ctx context.Context, in reconcile.Input) (reconcile.Report, error) {
	l, id := c.Resources.Ledger(), payouts.Promotion{Type: payouts.Type(in.Type.Name), ID: in.Promotion}
	status, unknown := l.Status(ctx, id)
	if unknown != nil && !errors.Is(unknown, ledger.ErrNotFound) {
		return reconcile.Report{}, unknown
	}
	var err error
	if in.AsOf, err = l.Now(ctx); err != nil {
		return reconcile.Report{}, fmt.Errorf("reconcile %s: %w", id, err)
	}
	in.Unannounced = c.Settings().AcceptUnannounced
	in.Rows = func(fn func(ledger.Payout) error) error { return l.EachPayout(ctx, id, fn) }
	in.Kept = func() (oncereconcile.Kept, error) {
		c, err := l.Status(ctx, id)
		if errors.Is(err, ledger.ErrNotFound) {
			err = nil
		}
		return oncereconcile.Kept{Done: c.Paid, Failed: c.Failed, Unknown: c.Unknown, Cancelled: c.Cancelled}, err
	}
	r, err := reconcile.Compare(ctx, in)
	if err != nil {
		return reconcile.Report{}, fmt.Errorf("reconcile %s: %w", id, err)
	}
	r.Dead, r.Conflict = status.Dead, status.Conflict
	if r.DeadWaiting, err = c.DeadWaiting(ctx, id); err != nil {
		r.DeadNotKnown = logs.OneLine(err.Error()) // the books do not depend on it
	}
	if r.Targets == 0 {
		return r, unknown
	}
	return r, nil
}

func (c commands) totals(ctx context.Context, promotion int64, types []promotiontype.Type) (reconcile.Totals, error) {
	var all reconcile.Totals
	for _, t := range types {
		r, err := c.compare(ctx, reconcile.Input{Type: t, Promotion: promotion, Charges: c.charges(ctx, t, promotion)})
		if errors.Is(err, ledger.ErrNotFound) && len(types) > 1 {
			continue // a campaign need not have every type
		}
		if err != nil {
			return all, err
		}
		all.Add(r.Totals)
	}
	return all, nil
}
