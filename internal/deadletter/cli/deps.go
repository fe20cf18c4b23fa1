package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Deps is what the commands need of their process.
type Deps struct {
	// Register adds the service that opens the store. The error says that no store is configured.
	Register func(*pipeline.Registry) error
	// Open returns the store, and what ends its use: the store of the process, which stays open, or
	// one that is opened for this use.
	Open func(context.Context) (s *store.Store, end func(context.Context) error, err error)
	// Replayer returns what replays dead letters, for one use.
	Replayer func(*pipeline.Registry) Replayer
}

// Replayer replays and previews dead letters. A use calls Start or StartPreviews once, and Stop at the
// end.
type Replayer interface {
	// Start starts what replays to these targets need.
	Start(context.Context, []store.Target) error
	// StartPreviews starts what previews need. An unavailable server is no error: the previews
	// report it.
	StartPreviews(context.Context, []store.Target) error
	// Replay replays a dead letter. After an error it is not known whether the replay was done.
	Replay(context.Context, store.DeadLetter, store.By) (store.Outcome, error)
	// Preview returns what a replay or a discard would do now, and changes nothing.
	Preview(context.Context, store.DeadLetter) (store.Status, error)
	// Stop stops what was started.
	Stop(context.Context) error
}

// Command returns the command with its subcommands, without the reports and actions.
func Command(h *app.Host, deps Deps) *cobra.Command {
	group := h.ServiceFlags(&cobra.Command{
		Use:     "deadletter",
		Aliases: []string{"dlq"},
		Short:   "List, show, replay, discard and prune dead letters",
		Example: fmt.Sprintf("  %[1]s deadletter list\n  %[1]s deadletter show 15183961\n  %[1]s deadletter replay 15183961 --why \"the receiver is back\"", h.Name()),
	})
	group.AddCommand(deps.showCommand(h), deps.pruneCommand(h))
	return group
}

// session is one run of a command that is neither a report nor an action.
type session struct {
	*app.Host
	cmd      *cobra.Command
	store    *store.Store
	replayer Replayer
}

// run calls do with the open store.
func (e Deps) run(h *app.Host, cmd *cobra.Command, do func(context.Context, *session) error) error {
	return h.Services(cmd.Context(), cmd, app.ServicesOptions{Routes: true, Register: e.Register}, func(ctx context.Context, running *app.Running) (err error) {
		return e.with(ctx, running.Registry, func(s *store.Store, replayer Replayer) error {
			return do(ctx, &session{Host: h, cmd: cmd, store: s, replayer: replayer})
		})
	})
}

// with opens the store, calls do, and ends what do has started, also when do panics.
func (e Deps) with(ctx context.Context, reg *pipeline.Registry, do func(*store.Store, Replayer) error) (err error) {
	s, end, err := e.Open(ctx)
	if err != nil {
		return err
	}
	replayer := e.Replayer(reg)
	defer func() { err = errors.Join(err, replayer.Stop(ctx), end(ctx)) }()
	return do(s, replayer)
}

// show writes v as JSON with --json, and text otherwise.
func (s *session) show(v any, text func(io.Writer) error) error { return s.Show(s.cmd, v, text) }
