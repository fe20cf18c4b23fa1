package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/watch"
	"github.com/millrace-io/millrace/pipeline/app"
)

type watchFlags struct {
	url, token string
	after      int64
	sign       func() string // without a token; may be nil
}

// Line is a line of watch --json.
type Line struct {
	Name string          `json:"name"` // of the message: event, transient, state, gap, closed
	ID   string          `json:"id,omitempty"`
	Data json.RawMessage `json:"data"`
}

func (c commands) watch() *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch DOMAIN/JOB_ID",
		Short: "Show the events of a job until it ends",
		Long: `Show the events of a job until it ends.

The command connects to a gateway, as a browser does. It connects again when the connection
breaks or is silent, or after max_watch, and continues after the last event. Without --token it
signs one for each connection, with the first of plugins.token.keys. The exit code is 1 if the job
ends with error, or if the gateway refuses the token, such as one of --token that has expired.`,
		Example: "  millrace jobs watch scan/42 --profile gateway\n  millrace jobs watch scan/42 --url https://example.com --token $TOKEN --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := jobArg(args[0])
			if err != nil {
				return err
			}
			if f.after < 0 {
				return app.Usage("--after must be >= 0, got %d", f.after)
			}
			if f.url != "" {
				return c.follow(cmd.Context(), cmd, j, f)
			}
			return c.h.Services(cmd.Context(), cmd, app.ServicesOptions{Plugins: []string{"token"}}, func(ctx context.Context, _ *app.Running) error {
				f.url = c.WebURL()
				f.sign = func() string {
					signed, _ := c.Sign([]string{j.String()}, "", time.Now().Add(c.Settings().MaxWatch)) // without a key, perhaps the gateway needs no token
					return signed
				}
				return c.follow(ctx, cmd, j, f)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.url, "url", "", "`address` of the gateway (default that of the settings)")
	flags.StringVar(&f.token, "token", "", "watch `token`")
	flags.Int64Var(&f.after, "after", 0, "begin after the event with this `number`")
	flags.Bool("json", false, "write one JSON object per message, for scripts")
	return cmd
}

// present returns the token of the next connection, or "".
func (f watchFlags) present() string {
	if f.token == "" && f.sign != nil {
		return f.sign()
	}
	return f.token
}

// cursor returns the id to begin after.
func (f watchFlags) cursor() string {
	if f.after == 0 {
		return ""
	}
	return strconv.FormatInt(f.after, 10)
}

func (c commands) follow(ctx context.Context, cmd *cobra.Command, j job, f watchFlags) error {
	address, err := url.Parse(f.url)
	if err != nil || address.Host == "" {
		return app.Usage("--url must be an address such as https://host, got %q", f.url)
	}
	var failed error // of the output
	reason, err := watch.Follow(ctx, watch.Options{
		URL: address.JoinPath("jobs", j.domain, j.id, "events").String(), Token: f.present, LastEventID: f.cursor(),
		Message: func(m watch.Message) {
			if err := c.message(m, c.h.JSON(cmd)); failed == nil {
				failed = err
			}
		},
		Disconnected: func(reason error, delay time.Duration) {
			fmt.Fprintf(c.h.Err(), "Not connected: %s. Next try in %s.\n", app.Printable(reason.Error()), delay.Round(time.Millisecond))
		},
	})
	switch {
	case errors.Is(err, watch.ErrRefused):
		return app.Bad("%w", err)
	case err != nil:
		return err
	case failed != nil:
		return failed
	case reason != "done":
		return app.Bad("job %s has ended with %s", j, app.Printable(reason))
	}
	return nil
}

// message writes a message as a line.
func (c commands) message(m watch.Message, asJSON bool) error {
	if asJSON {
		data := m.Data
		if !json.Valid(data) {
			data = []byte("null")
		}
		line, err := json.Marshal(Line{m.Name, m.ID, data})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(c.h.Out(), string(line))
		return err
	}
	var text string
	switch m.Name {
	case watch.NameEvent, watch.NameTransient, watch.NameState:
		e, err := event.Decode(m.Data)
		if err != nil {
			return err
		}
		number := strconv.FormatInt(m.Number(), 10)
		if m.Name != watch.NameEvent {
			number = m.Name
		}
		parts := slices.DeleteFunc([]string{number, e.Stage, e.Status, compact(e.Data)}, func(part string) bool { return part == "" })
		text = strings.Join(parts, "  ")
	case watch.NameGap:
		var gap struct{ From, To int64 }
		_ = json.Unmarshal(m.Data, &gap)
		text = fmt.Sprintf("%d to %d are missing", gap.From, gap.To)
		if m.Number() < gap.From {
			text = fmt.Sprintf("%d to %d belong to other events now, which follow", gap.From, gap.To)
		}
	case watch.NameClosed, watch.NameBusy:
		return nil // the reason is shown when the stream has ended
	}
	_, err := fmt.Fprintln(c.h.Out(), app.Printable(text))
	return err
}

// compact returns data in one line.
func compact(data json.RawMessage) string {
	var line bytes.Buffer
	if len(data) == 0 || json.Compact(&line, data) != nil {
		return ""
	}
	return line.String()
}
