package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	group := h.ServiceFlags(&cobra.Command{
		Use:   "dead",
		Short: "Look at dead letters, replay them or give them up",
	})
	group.AddCommand(p.listCommand(h), p.showCommand(h), p.replayCommand(h), p.discardCommand(h), p.pruneCommand(h))
	return []*cobra.Command{group}
}

// withStore opens the working copy alone, around do.
func (p *Plugin) withStore(h *app.Host, cmd *cobra.Command, do func(context.Context, *app.Running, *letters.Store) error) error {
	return h.Services(cmd.Context(), cmd, app.ServicesOptions{Register: func(r *pipeline.Registry) error {
		if p.config.Store.DSN.IsZero() {
			return app.Usage("there is no working copy of dead letters here: plugins.deadletter.store.dsn is not set")
		}
		p.log = r.Env().Logger
		r.Service("deadletter.store", &store{plugin: p, schemas: r.Env().Schemas})
		return nil
	}}, func(ctx context.Context, running *app.Running) error {
		p.disabled = running.Disabled
		return do(ctx, running, p.letters.Load())
	})
}

// filterFlags are the flags that say which letters are meant.
type filterFlags struct {
	letters.Filter
	since, until string
}

func (f *filterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Source, "source", "", "only from this `topic` or stream")
	flags.StringVar(&f.Plugin, "plugin", "", "only of the plugin of this `name`")
	flags.StringVar(&f.Handler, "handler", "", "only of the `route` of this name")
	flags.StringVar(&f.Class, "class", "", "only with errors of this `class`")
	flags.StringVar(&f.Fingerprint, "fingerprint", "", "only with errors of this `kind` (see list --group)")
	flags.StringVar(&f.since, "since", "", "only that failed last at or after this `time`: RFC 3339, or how long ago, as 2h")
	flags.StringVar(&f.until, "until", "", "only that failed last before this `time`")
}

// parse reads the times.
func (f *filterFlags) parse() (err error) {
	if f.Since, err = moment("since", f.since); err == nil {
		f.Until, err = moment("until", f.until)
	}
	return err
}

func moment(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return time.Now().Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, app.Usage("--%s must be a time such as 2026-03-04T05:06:07Z, or how long ago, such as 2h, got %q", flag, text)
	}
	return t, nil
}

func (p *Plugin) listCommand(h *app.Host) *cobra.Command {
	var (
		f      filterFlags
		states []string
		group  bool
		limit  int
	)
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first, or the kinds of errors they have",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			var err error
			if f.States, err = parseStates(states); err != nil {
				return err
			}
			if limit < 1 {
				return app.Usage("--limit must be > 0, got %d", limit)
			}
			return p.withStore(h, cmd, func(ctx context.Context, _ *app.Running, s *letters.Store) error {
				if err := f.known(ctx, s); err != nil {
					return err
				}
				if group {
					return listGroups(ctx, h, cmd, s, f.Filter, limit)
				}
				return listLetters(ctx, h, cmd, s, f.Filter, limit)
			})
		},
	})
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&states, "state", nil, "only in these `states`: "+joined(letters.States())+", or all (without it: "+joined(letters.Waiting())+")")
	flags.BoolVar(&group, "group", false, "group by kind of error: what differs only in numbers and ids is one kind")
	flags.IntVar(&limit, "limit", 50, "show at most so many")
	return cmd
}

func joined(states []letters.State) string { return strings.Join(stateNames(states), ", ") }

func stateNames(states []letters.State) []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return names
}

func parseStates(names []string) ([]letters.State, error) {
	if len(names) == 0 {
		return letters.Waiting(), nil
	}
	var states []letters.State
	for _, name := range names {
		if name == "all" {
			return nil, nil
		}
		if !slices.Contains(letters.States(), letters.State(name)) {
			return nil, app.Usage("--state must be all or of %s, got %q", joined(letters.States()), name)
		}
		states = append(states, letters.State(name))
	}
	return states, nil
}

// list is what `dead list --json` prints.
type list struct {
	Total   int64            `json:"total"` // those that are shown and those that are not
	Letters []letters.Letter `json:"letters"`
}

func listLetters(ctx context.Context, h *app.Host, cmd *cobra.Command, s *letters.Store, f letters.Filter, limit int) error {
	found, total, err := s.List(ctx, f, limit)
	if err != nil {
		return err
	}
	if h.JSON(cmd) {
		return h.WriteJSON(list{total, found})
	}
	if len(found) == 0 {
		fmt.Fprintln(h.Out(), "No dead letters.")
		return nil
	}
	w := tabwriter.NewWriter(h.Out(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tFAILED\tHANDLER\tABOUT\tCLASS\tERROR")
	for _, l := range found {
		about := l.Subject
		if about == "" {
			about = l.Source.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.ID, l.State, l.Failed.Format(time.RFC3339), l.Handler, line(about, 60), line(l.Class, errorWidth), line(l.Error, errorWidth))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if more := total - int64(len(found)); more > 0 {
		fmt.Fprintf(h.Out(), "… and %d more: --limit shows more of them, a filter or --group fewer.\n", more)
	}
	return nil
}

// groups is what `dead list --group --json` prints.
type groups struct {
	Groups []letters.Group `json:"groups"`
}

func listGroups(ctx context.Context, h *app.Host, cmd *cobra.Command, s *letters.Store, f letters.Filter, limit int) error {
	found, err := s.Groups(ctx, f, limit)
	if err != nil {
		return err
	}
	if h.JSON(cmd) {
		return h.WriteJSON(groups{found})
	}
	if len(found) == 0 {
		fmt.Fprintln(h.Out(), "No dead letters.")
		return nil
	}
	w := tabwriter.NewWriter(h.Out(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FINGERPRINT\tLETTERS\tCLASS\tHANDLER\tFIRST\tLAST\tEXAMPLE\tERROR")
	for _, g := range found {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Fingerprint, g.Letters, g.Class, g.Handler,
			g.FirstFailed.Format(time.RFC3339), g.LastFailed.Format(time.RFC3339), g.Example, line(g.Error, errorWidth))
	}
	return w.Flush()
}

// errorWidth is the room of an error in a list: the last column, which may well be wide.
const errorWidth = 160

// line makes text one line of at most so many characters, and of none that a terminal would obey. What is too long loses
// its middle: the end of an error says what happened.
func line(text string, most int) string {
	text = app.Printable(strings.Join(strings.Fields(text), " "))
	if r := []rune(text); len(r) > most {
		head := (most - 1) / 2
		return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
	}
	return text
}

// Shown is what `dead show --json` prints.
type Shown struct {
	letters.Letter
	// Text is the payload when it is UTF-8; otherwise Bytes is, in base64.
	Text    *string          `json:"payload,omitempty"`
	Bytes   []byte           `json:"payload_base64,omitempty"`
	Actions []letters.Action `json:"actions"`
	// Now is how what the letter is about stands. Nil: that can't be asked, and NotAsked says why.
	Now      *Standing `json:"now,omitempty"`
	NotAsked string    `json:"now_not_asked,omitempty"`
}

// look fills in how what the letter is about stands.
func (s *Shown) look(ctx context.Context, k *looker) {
	now, err := k.look(ctx, s.Letter)
	if err != nil {
		s.NotAsked = err.Error()
		return
	}
	s.Now = &now
}

// now tells it to a person. What a replay would come to is for letters that wait.
func (s *Shown) now() string {
	switch {
	case s.Now == nil:
		return "not known: " + s.NotAsked
	case slices.Contains(letters.Waiting(), s.State):
		return s.Now.String()
	}
	return s.Now.State
}

func (p *Plugin) showCommand(h *app.Host) *cobra.Command {
	var raw bool
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter: where it came from, why it died, its payload, what was done to it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withStore(h, cmd, func(ctx context.Context, running *app.Running, s *letters.Store) error {
				id, err := whole(ctx, s, "dead letter", letters.FieldID, args[0])
				if err != nil {
					return err
				}
				l, actions, err := s.Get(ctx, id)
				switch {
				case errors.Is(err, letters.ErrNotFound):
					return &app.ExitError{Code: app.ExitBad, Err: err}
				case err != nil:
					return err
				case raw:
					_, err := h.Out().Write(l.Payload)
					return err
				}
				shown := Shown{Letter: l, Actions: actions}
				if text := string(l.Payload); utf8.ValidString(text) {
					shown.Text = &text
				} else {
					shown.Bytes = l.Payload
				}
				if err := p.withLooker(ctx, running.Registry.Env(), []letters.Kind{l.Kind()}, func(ctx context.Context, k *looker) error {
					shown.look(ctx, k)
					return nil
				}); err != nil {
					return err
				}
				if h.JSON(cmd) {
					return h.WriteJSON(shown)
				}
				return show(h.Out(), &shown)
			})
		},
	})
	cmd.Flags().BoolVar(&raw, "payload", false, "write the payload alone, as it came")
	return cmd
}

func show(out io.Writer, s *Shown) error {
	l := s.Letter
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("letter", fmt.Sprintf("%s, %s, generation %d", l.ID, l.State, l.Generation))
	row("about", l.Subject)
	row("now", line(s.now(), 2000))
	row("error", l.Class+": "+line(l.Error, 2000))
	row("kind of error", l.Fingerprint)
	row("handler", l.Handler)
	row("from", strings.TrimSpace(l.Source.Kind+" "+l.Source.String()))
	row("dead-letter topic", l.Topic)
	row("attempts", fmt.Sprint(l.Attempts))
	row("failed first", l.FirstFailed.Format(time.RFC3339Nano))
	row("failed last", l.Failed.Format(time.RFC3339Nano))
	row("trace", l.TraceParent)
	row("message id", l.UUID)
	row("key", quoted(l.Key))
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		row("header", quoted(name)+" = "+quoted(l.Headers[name]))
	}
	row("payload", quoted(string(l.Payload)))
	for _, a := range s.Actions {
		text := fmt.Sprintf("%s %s of generation %d: %s", a.At.Format(time.RFC3339), a.Action, a.Generation, a.Outcome)
		if a.Who != "" {
			text += fmt.Sprintf(", by %s (%s)", a.Who, line(a.Why, 200))
		}
		if a.Detail != "" {
			text += ": " + line(a.Detail, 300)
		}
		row("done", text)
	}
	return w.Flush()
}

// quoted shows text that may hold anything: as it is when that can be read, otherwise escaped.
func quoted(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	escaped, _ := json.Marshal(text) // a string always encodes
	return app.Printable(string(escaped))
}

var _ app.Commander = (*Plugin)(nil)
