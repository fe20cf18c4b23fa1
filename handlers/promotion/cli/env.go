package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/kafka"
)

// Env is what the commands need of the plugin. All fields are required.
type Env struct {
	campaign.Env
	Kafka Kafka
	// Connections returns the addresses of this process, and MoneyURL that of the Money API. They are called
	// while services run.
	Connections func() Connections
	MoneyURL    func() string
}

// Kafka is the plugin kafka.
type Kafka interface {
	Name() string
	Sink(topic string) pipeline.Sink
	Scan(ctx context.Context, topic string, each func(kafka.Scanned) error) (kafka.Scan, error)
}

type commands struct {
	Env
	h *app.Host
}

// Commands returns the commands of the plugin.
func Commands(h *app.Host, env Env) []*cobra.Command {
	c := commands{env, h}
	campaigns := h.ServiceFlags(&cobra.Command{
		Use:        "campaign",
		SuggestFor: []string{"publish", "unpaid", "pay"},
		Short:      "Publish, inspect and control campaign promotions",
		Example: `  millrace campaign list
  millrace campaign status POINT 12345
  millrace campaign explain POINT 12345 777`,
	})
	campaigns.AddCommand(c.publish(), c.schema(), c.explain(), c.reconcile())
	unknown := h.ServiceFlags(&cobra.Command{
		Use:   "unknown",
		Short: "List and resolve payouts that may have been charged",
		Example: `  millrace unknown list
  millrace unknown resolve POINT 12345 777 --paid TX-42 --why "ticket 4711"`,
	})
	unknown.AddCommand(c.unknownList())
	return []*cobra.Command{c.demo(), campaigns, unknown, simulator.Command()}
}

func required(on bool) campaign.Need {
	if on {
		return campaign.Required
	}
	return campaign.Unused
}

// with starts services, calls do and stops them. It gives an error of do an exit code.
func (c commands) with(cmd *cobra.Command, s campaign.Services, do func(context.Context) error) error {
	o := app.ServicesOptions{Register: func(r *pipeline.Registry) error { return c.Resources.Register(r, s) }}
	if s.Kafka {
		o.Plugins = []string{c.Kafka.Name()}
	}
	return exitCode(c.h.Services(cmd.Context(), cmd, o, func(ctx context.Context, _ *app.Running) error { return do(ctx) }))
}

var errNoCharges = errors.New("the Money API has no call that lists charges: write handlers/promotion/cli/charges.go for yours, or --no-money compares Kafka with the ledger alone")

// exitCode is campaign.WithExitCode for errors of this package, too.
func exitCode(err error) error {
	if exit, own := errors.AsType[*app.ExitError](err); errors.Is(err, errNoCharges) && (!own || exit == nil) {
		return &app.ExitError{Code: app.ExitUsage, Err: err}
	}
	return campaign.WithExitCode(err)
}

// showLine is Host.Show for a text of one line.
func (c commands) showLine(cmd *cobra.Command, v any, format string, args ...any) error {
	return c.h.Show(cmd, v, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, format+"\n", args...)
		return err
	})
}
