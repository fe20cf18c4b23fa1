package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
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

// withLedger is with for a command that needs only the ledger.
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
