package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Env is what the commands need of the plugin. All fields are required.
type Env struct {
	Kafka       Kafka
	DeadLetters DeadLetters
	// Plugin is the plugin's name in dead letters.
	Plugin string
	// DeadLetterID returns the id that a dead letter of the ledger has in the dead letter store.
	DeadLetterID func(ledger.OutboxMessage) string
	// Settings returns the settings. They are valid while services run.
	Settings func() Settings
	// Connections returns the addresses of this process. It is called while services run.
	Connections func() Connections
	Resources   Resources
}

// Settings are the settings that commands explain or compare with.
type Settings struct {
	CallTimeout       time.Duration // of the Money API
	Lease             time.Duration // of a payout
	IdempotencyTTL    time.Duration // of a key
	FeederInterval    time.Duration // between two rounds of the feeder
	FeederGrace       time.Duration // before the feeder enqueues an overdue payout
	AcceptUnannounced bool
}

// Resources are the connections of the plugin. All but Register are valid while services run.
type Resources interface {
	// Register adds the services that open what s names.
	Register(r *pipeline.Registry, s Services) error
	Ledger() *ledger.Ledger
	Log() *slog.Logger
	// API returns the client. It is nil if the simulated Money API runs inside the service.
	API() money.API
	MoneyURL() string
	// Streams returns the streams of a type, or nil for a type that this version does not have.
	Streams(t payouts.Type) *streams.Manager
}

// Kafka is the plugin kafka.
type Kafka interface {
	Name() string
	Sink(topic string) pipeline.Sink
	Scan(ctx context.Context, topic string, each func(kafka.Scanned) error) (kafka.Scan, error)
}

// DeadLetters is the plugin deadletter. A subject is the key of a payout.
type DeadLetters interface {
	About(ctx context.Context, plugin, subject string) ([]store.DeadLetter, error)
	Settled(ctx context.Context, plugin, subject string, by store.By) (ids []string, err error)
}

type commands struct {
	Env
	h *app.Host
}

// Commands returns the commands of the plugin.
func Commands(h *app.Host, env Env) []*cobra.Command {
	c := commands{env, h}
	campaign := h.ServiceFlags(&cobra.Command{
		Use:        "campaign",
		SuggestFor: []string{"publish", "unpaid", "pay"},
		Short:      "Publish, inspect and control campaign promotions",
		Example: `  millrace campaign list
  millrace campaign status POINT 12345
  millrace campaign explain POINT 12345 777`,
	})
	campaign.AddCommand(c.publish(), c.schema(), c.list(), c.status(), c.explain(), c.reconcile(), c.rebuild(), c.pause(), c.resume(), c.cancel())
	unknown := h.ServiceFlags(&cobra.Command{
		Use:   "unknown",
		Short: "List and resolve payouts that may have been charged",
		Example: `  millrace unknown list
  millrace unknown resolve POINT 12345 777 --paid TX-42 --why "ticket 4711"`,
	})
	unknown.AddCommand(c.unknownList(), c.unknownResolve())
	return []*cobra.Command{c.demo(), campaign, unknown, simulator.Command()}
}

// Services are the services that a command starts. The zero value starts none.
type Services struct {
	Ledger   bool
	Streams  bool // the Redis of the streams, without readers
	MoneyAPI Need
	Kafka    bool
}

// Need says whether a command needs the Money API.
type Need int

// The needs.
const (
	Unused   Need = iota
	Optional      // the command works without it
	Required
)

func required(on bool) Need {
	if on {
		return Required
	}
	return Unused
}

// with starts services, calls do and stops them. It gives an error of do an exit code.
func (c commands) with(cmd *cobra.Command, s Services, do func(context.Context) error) error {
	o := app.ServicesOptions{Register: func(r *pipeline.Registry) error { return c.Resources.Register(r, s) }}
	if s.Kafka {
		o.Plugins = []string{c.Kafka.Name()}
	}
	return withExitCode(c.h.Services(cmd.Context(), cmd, o, func(ctx context.Context, _ *app.Running) error { return do(ctx) }))
}

func (c commands) withLedger(cmd *cobra.Command, do func(context.Context, *ledger.Ledger) error) error {
	return c.with(cmd, Services{Ledger: true}, func(ctx context.Context) error { return do(ctx, c.Resources.Ledger()) })
}

// showLine is Host.Show for a text of one line.
func (c commands) showLine(cmd *cobra.Command, v any, format string, args ...any) error {
	return c.h.Show(cmd, v, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, format+"\n", args...)
		return err
	})
}
