package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/app"
)

// statuses is the output of status --json.
type statuses struct {
	Rooms []room.Status `json:"rooms"`
}

func (c commands) status() *cobra.Command {
	return c.h.JSONFlag(&cobra.Command{
		Use:   "status [EVENT…]",
		Short: "Show rooms: their state, users, leases and seats",
		Long: `Show rooms: their state, users, leases and seats.

Without an event it shows all rooms. The exit code is 1 if an event has no room.`,
		Example: "  millrace room status --profile broker\n  millrace room status 42 --json --profile broker",
		RunE: func(cmd *cobra.Command, events []string) error {
			return c.run(cmd, func(ctx context.Context, rooms *room.Store) error {
				all := len(events) == 0
				if all {
					var err error
					if events, err = rooms.Events(ctx); err != nil {
						return err
					}
					slices.Sort(events)
				}
				list, failed := statuses{Rooms: []room.Status{}}, error(nil)
				for _, event := range events {
					s, err := do[room.Status](ctx, rooms, event, admin.Status, admin.Request{})
					if all && errors.Is(err, room.ErrUnknown) {
						continue // it was cleared in between
					}
					if err != nil { // the node of another room may answer
						failed = errors.Join(failed, fmt.Errorf("room %s: %w", event, err))
						continue
					}
					list.Rooms = append(list.Rooms, s)
				}
				if failed != nil && len(list.Rooms) == 0 {
					return failed
				}
				return errors.Join(c.h.Show(cmd, list, list.write), failed)
			})
		},
	})
}

// limit is a number of which a negative one means text.
func limit(n int64, text string) string {
	if n < 0 {
		return text
	}
	return app.Thousands(n)
}

func (l statuses) write(out io.Writer) error {
	if len(l.Rooms) == 1 {
		return writeRoom(out, l.Rooms[0])
	}
	w := app.Table(out)
	fmt.Fprintln(w, "EVENT\tSTATE\tWAITING\tREADY\tADMITTED\tFREE\tSOLD\tCAPACITY")
	for _, s := range l.Rooms {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", app.Printable(s.Event), s.Short(), app.Thousands(s.Waiting), app.Thousands(s.Ready),
			app.Thousands(s.Admitted), app.Thousands(s.Free), app.Thousands(s.Sold), limit(s.Capacity, "unknown"))
	}
	return w.Flush()
}

func writeRoom(out io.Writer, s room.Status) error {
	w := app.Table(out)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	at := func(ms int64) string {
		if ms == 0 {
			return ""
		}
		return stamp(ms)
	}
	row("event", app.Printable(s.Event))
	row("state", s.State)
	row("no promotions", s.Halted.Text())
	if s.Hold > 0 {
		row("pause after an outage", fmt.Sprint(time.Duration(s.Hold)*time.Millisecond, " left"))
	}
	row("mode", s.Mode)
	row("commitment of the shuffle", s.Commitment)
	if s.Frozen > 0 {
		row("places drawn", app.Thousands(s.Drawn)+" of "+app.Thousands(s.Frozen))
	}
	row("drawn at", at(s.DrawnAt))
	row("opens at", at(s.OpensAt))
	row("closes at", at(s.ClosesAt))
	row("waiting", app.Thousands(s.Waiting))
	row("promoted, not notified", app.Thousands(s.Ready))
	row("admitted", app.Thousands(s.Admitted))
	row("free slots", app.Thousands(s.Free))
	row("sold", app.Thousands(s.Sold))
	row("capacity", limit(s.Capacity, "unknown"))
	row("admitted at most", limit(s.Concurrency, "no limit"))
	row("promotions per minute", limit(s.PerMinute, "no limit"))
	row("promoted so far", app.Thousands(s.Promoted))
	row("records set aside", app.Thousands(s.Aside))
	row("message", app.Printable(s.Message))
	row("last tick", at(s.LastTick))
	return w.Flush()
}

func (c commands) find() *cobra.Command {
	return c.h.JSONFlag(&cobra.Command{
		Use:     "find EVENT USER",
		Short:   "Show where a user stands, or why there is no place",
		Long:    "Show where a user stands, or why there is no place.\n\nThe exit code is 1 if the event has no room.",
		Example: "  millrace room find 42 ann --profile broker",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, rooms *room.Store) error {
				u, err := do[admin.User](ctx, rooms, args[0], admin.Find, admin.Request{User: args[1]})
				if err != nil {
					return err
				}
				return c.h.Show(cmd, u, func(out io.Writer) error { return writeUser(out, u) })
			})
		},
	})
}

func writeUser(out io.Writer, u admin.User) error {
	w := app.Table(out)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, app.Printable(value))
		}
	}
	row("user", u.User)
	row("state", cmp.Or(string(u.State), "no place"))
	row("reason", u.Reason)
	if u.Index > 0 {
		row("index", strconv.FormatInt(u.Index, 10))
	}
	if u.Ahead != nil {
		row("ahead", app.Thousands(*u.Ahead))
	}
	row("lease", u.JTI)
	if u.Until > 0 {
		row("until", stamp(u.Until))
	}
	row("instance", u.Instance)
	row("shop", u.Shop)
	if u.Bought > 0 {
		row("bought", app.Thousands(int64(u.Bought)))
	}
	if memory := string(u.Memory); memory != "null" {
		row("an earlier place", memory)
	}
	return w.Flush()
}

func (c commands) audit() *cobra.Command {
	var q admin.Request
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:     "audit EVENT",
		Short:   "Show who changed a room, when and why",
		Long:    "Show who changed a room, when and why, the oldest change first.\n\nThe audit stays when the room is cleared.",
		Example: "  millrace room audit 42 --profile broker\n  millrace room audit 42 --after 1764590400000-0 --profile broker",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, rooms *room.Store) error {
				list, err := do[admin.Records](ctx, rooms, args[0], admin.Audit, q)
				if err != nil {
					return err
				}
				return c.h.Show(cmd, list, func(out io.Writer) error {
					w := app.Table(out)
					fmt.Fprintln(w, "ID\tTIME\tBY\tCHANGE\tDETAIL\tREASON")
					for _, r := range list.Records {
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, stamp(r.At), app.Printable(r.By), r.Verb, app.Printable(r.Detail), app.Printable(r.Why))
					}
					return w.Flush()
				})
			})
		},
	})
	cmd.Flags().StringVar(&q.After, "after", "", "begin after the record with this `id`")
	cmd.Flags().IntVar(&q.Limit, "limit", 0, "maximum `number` of records (default 100)")
	return cmd
}
