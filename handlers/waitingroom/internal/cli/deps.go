// Package cli has the commands of the waiting room.
package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/token"
)

// Deps is what the commands need of the plugin.
type Deps struct {
	// Rooms returns the rooms of the settings, with a client of their own.
	Rooms func() (*room.Store, *redis.Server)
	// Redis returns the server of the rooms.
	Redis func() redis.ClientConfig
	// Addr returns the address of the broker that runs in this process.
	Addr func() string
	// Keys returns the keys of its tokens.
	Keys func() []token.KeyConfig
}

// commands has what each command needs.
type commands struct {
	Deps
	h *app.Host
}

// Command returns the command with its subcommands.
func Command(h *app.Host, deps Deps) *cobra.Command {
	c := commands{deps, h}
	group := &cobra.Command{
		Use:     "room",
		Short:   "Open, control and inspect waiting rooms",
		Example: "  millrace room open 42 --capacity 500 --why \"ticket 4711\" --profile broker\n  millrace room status --profile broker",
	}
	for _, cmd := range append(c.changes(), c.status(), c.find(), c.audit(), c.shuffle()) {
		group.AddCommand(h.ServiceFlags(cmd))
	}
	group.AddCommand(c.verify(), c.demo()) // need no server, or their own
	return group
}

// run starts the server and calls do with the rooms.
func (c commands) run(cmd *cobra.Command, do func(context.Context, *room.Store) error) error {
	var rooms *room.Store
	return c.h.Services(cmd.Context(), cmd, app.ServicesOptions{Register: func(r *pipeline.Registry) error {
		var server *redis.Server
		rooms, server = c.Rooms()
		server.Log = r.Env().Logger
		r.Service("waitingroom.redis", server)
		return nil
	}}, func(ctx context.Context, _ *app.Running) error { return do(ctx, rooms) })
}

// do does what a verb says, and returns its answer. Errors have the exit code of the command.
func do[T any](ctx context.Context, rooms *room.Store, event, verb string, q admin.Request) (T, error) {
	answer, err := admin.Do(ctx, rooms, event, verb, q)
	typed, _ := answer.(T)
	if err != nil {
		err = admin.Failed(event, verb, err)
	}
	return typed, err
}

// stamp is a time of the server in the local time zone.
func stamp(ms int64) string { return time.UnixMilli(ms).Format(time.RFC3339) }
