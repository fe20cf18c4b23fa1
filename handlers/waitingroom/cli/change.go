package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/app"
)

// change completes a command that changes a room: its arguments after the event, and the flags
// --who and --why. request may be nil.
func (c commands) change(verb string, args cobra.PositionalArgs, cmd *cobra.Command, request func(cmd *cobra.Command, args []string) (admin.Request, error)) *cobra.Command {
	var by app.By
	cmd.Args = args
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := by.Check(); err != nil {
			return err
		}
		var q admin.Request
		if request != nil {
			var err error
			if q, err = request(cmd, args[1:]); err != nil {
				return err
			}
		}
		q.By, q.Why = by.Who, by.Why
		return c.run(cmd, func(ctx context.Context, rooms *room.Rooms) error {
			s, err := do[room.Status](ctx, rooms, args[0], verb, q)
			if err != nil {
				return err
			}
			return c.h.Show(cmd, s, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "Event %s: %s. The room is %s.\n", app.Printable(s.Event), map[string]string{
					room.Open: "opened", room.Hold: "promotion stopped", room.Resume: "promotion continues", room.Drain: "no new users",
					room.Close: "closed", room.Set: "settings changed", room.Message: "message changed", room.Kick: "user removed",
				}[verb], s.State)
				return err
			})
		})
	}
	by.Flags(cmd)
	return c.h.JSONFlag(cmd)
}

// simple is a command without further arguments.
func (c commands) simple(verb, short string) *cobra.Command {
	return c.change(verb, cobra.ExactArgs(1), &cobra.Command{
		Use: verb + " EVENT --why REASON", Short: short,
		Example: "  millrace room " + verb + ` 42 --why "ticket 4711" --profile broker`,
	}, nil)
}

func (c commands) hold() *cobra.Command {
	return c.simple(room.Hold, "Stop the promotion; users keep their places")
}

func (c commands) resume() *cobra.Command {
	return c.simple(room.Resume, "Continue the promotion after a hold")
}

func (c commands) drain() *cobra.Command {
	return c.simple(room.Drain, "Refuse new users, and promote those that wait")
}

func (c commands) close() *cobra.Command {
	return c.simple(room.Close, "End the places of all waiting users; admitted users continue")
}

// limits are the flags of open and set.
type limits struct {
	capacity, concurrency, perMinute int64
	mode, opensAt, closesAt          string
}

func (l *limits) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Int64Var(&l.capacity, "capacity", 0, "`number` of seats for sale")
	flags.Int64Var(&l.concurrency, "concurrency", 0, "maximum `number` of admitted users; -1: no limit")
	flags.Int64Var(&l.perMinute, "per-minute", 0, "maximum `number` of promotions per minute; -1: no limit")
	flags.StringVar(&l.mode, "mode", "", "`mode`: "+strings.Join(room.Modes(), ", "))
	flags.StringVar(&l.opensAt, "opens-at", "", "`time` of the opening, as 2026-12-01T10:00:00Z; 0: none")
	flags.StringVar(&l.closesAt, "closes-at", "", "`time` of the end; 0: none")
}

// request returns the limits that were given.
func (l *limits) request(cmd *cobra.Command, _ []string) (admin.Request, error) {
	var q admin.Request
	for name, n := range map[string]struct {
		from *int64
		to   **int64
	}{"capacity": {&l.capacity, &q.Capacity}, "concurrency": {&l.concurrency, &q.Concurrency}, "per-minute": {&l.perMinute, &q.PerMinute}} {
		if cmd.Flags().Changed(name) {
			*n.to = n.from
		}
	}
	if cmd.Flags().Changed("mode") {
		q.Mode = &l.mode
	}
	for name, at := range map[string]struct {
		from string
		to   **int64
	}{"opens-at": {l.opensAt, &q.OpensAt}, "closes-at": {l.closesAt, &q.ClosesAt}} {
		if !cmd.Flags().Changed(name) {
			continue
		}
		var ms int64
		if at.from != "0" {
			t, err := time.Parse(time.RFC3339, at.from)
			if err != nil {
				return q, app.Usage("--%s must be a time such as 2026-12-01T10:00:00Z, or 0; got %q", name, at.from)
			}
			ms = t.UnixMilli()
		}
		*at.to = &ms
	}
	return q, nil
}

func (c commands) open() *cobra.Command {
	var l limits
	cmd := &cobra.Command{
		Use:   "open EVENT --why REASON",
		Short: "Open a waiting room, or schedule its opening",
		Long: `Open a waiting room, or schedule its opening.

The room is created if the event has none. Without --capacity it is fetched from the Event
Service; no user is promoted while it is unknown. With --opens-at in the future, users wait
until then.

With --mode shuffle a pre-queue begins, and its commitment is published. The pre-queue ends at
--opens-at, or with the next open without --mode. Its users then get their places by lot.`,
		Example: `  millrace room open 42 --capacity 500 --why "ticket 7" --profile broker
  millrace room open 42 --opens-at 2026-12-01T10:00:00Z --why "ticket 7"
  millrace room open 7 --mode shuffle --opens-at 2026-12-01T10:00:00Z --why draw`,
	}
	l.flags(cmd)
	return c.change(room.Open, cobra.ExactArgs(1), cmd, l.request)
}

func (c commands) set() *cobra.Command {
	var l limits
	cmd := &cobra.Command{
		Use:   "set EVENT --why REASON",
		Short: "Change capacity, limits, mode or schedule of a room",
		Long: `Change capacity, limits, mode or schedule of a room.

A capacity below the number of admitted users ends no lease: no user is promoted until
enough leases have ended. A higher one lets the queue of a sold-out room move again.`,
		Example: `  millrace room set 42 --capacity 450 --why "block C is closed" --profile broker
  millrace room set 42 --per-minute 600 --why "slow shop" --profile broker`,
	}
	l.flags(cmd)
	return c.change(room.Set, cobra.ExactArgs(1), cmd, func(cmd *cobra.Command, args []string) (admin.Request, error) {
		for _, name := range []string{"capacity", "concurrency", "per-minute", "mode", "opens-at", "closes-at"} {
			if cmd.Flags().Changed(name) {
				return l.request(cmd, args)
			}
		}
		return admin.Request{}, app.Usage("nothing to set: give --capacity, --concurrency, --per-minute, --mode, --opens-at or --closes-at")
	})
}

func (c commands) message() *cobra.Command {
	return c.change(room.Message, cobra.ExactArgs(2), &cobra.Command{
		Use:   "message EVENT TEXT --why REASON",
		Short: "Show a text to all users of a room; an empty one removes it",
		Example: `  millrace room message 42 "Doors open at 8." --why "ticket 7" --profile broker
  millrace room message 42 "" --why "over" --profile broker`,
	}, func(_ *cobra.Command, args []string) (admin.Request, error) {
		return admin.Request{Message: &args[0]}, nil
	})
}

func (c commands) kick() *cobra.Command {
	return c.change(room.Kick, cobra.ExactArgs(2), &cobra.Command{
		Use:     "kick EVENT USER --why REASON",
		Short:   "End the place or the lease of a user",
		Example: `  millrace room kick 42 ann --why "ticket 4711" --profile broker`,
	}, func(_ *cobra.Command, args []string) (admin.Request, error) { return admin.Request{User: args[0]}, nil })
}
