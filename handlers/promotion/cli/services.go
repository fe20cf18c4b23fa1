package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

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

// The services of each command.
func forPublish() Services { return Services{Kafka: true} }
func forStatus() Services  { return Services{Ledger: true, Streams: true} }

// list, pause, resume, cancel, rebuild, unknown list
func forLedger() Services          { return Services{Ledger: true} }
func forResolve() Services         { return Services{Ledger: true, MoneyAPI: Optional} }
func forExplain(api bool) Services { return Services{Ledger: true, MoneyAPI: required(api)} }

func forReconcile(kafka, api bool) Services {
	return Services{Ledger: true, Kafka: kafka, MoneyAPI: required(api)}
}

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
