package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Shown is the output of show --json.
type Shown struct {
	store.DeadLetter
	// TraceID and SpanID are those of the trace context that the dead letter was written in, as log lines
	// name them. Empty: there was none.
	TraceID string `json:"trace_id,omitempty"`
	SpanID  string `json:"span_id,omitempty"`
	// Text is a payload in UTF-8. Bytes is any other payload, in base64.
	Text    *string        `json:"payload,omitempty"`
	Bytes   []byte         `json:"payload_base64,omitempty"`
	Actions []store.Action `json:"actions"`
	// Now says what a replay or a discard would do. Nil: it is unknown, for the reason NowUnknown.
	Now        *store.Status `json:"now,omitempty"`
	NowUnknown string        `json:"now_unknown,omitempty"`
}

func (e Deps) showCommand(h *app.Host) *cobra.Command {
	var raw bool
	cmd := h.JSONFlag(&cobra.Command{
		SuggestFor: []string{"history"},
		Use:        "show ID",
		Short:      "Show a dead letter, its history, and what a replay would do",
		Example: fmt.Sprintf(`  %[1]s deadletter show 9c3f0e
  %[1]s deadletter show 9c3f0e --payload > payload.json`, h.Name()),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.run(h, cmd, func(ctx context.Context, s *session) error {
				id, err := expandPrefix(ctx, s.store, "dead letter", store.FieldID, args[0])
				if err != nil {
					return err
				}
				d, actions, err := s.store.Get(ctx, id)
				switch {
				case errors.Is(err, store.ErrNotFound):
					return &app.ExitError{Code: app.ExitBad, Err: err}
				case err != nil:
					return err
				case raw:
					_, err := h.Out().Write(d.Payload)
					return err
				}
				return s.showOne(ctx, d, actions)
			})
		},
	})
	cmd.Flags().BoolVar(&raw, "payload", false, "write only the payload, unchanged")
	return cmd
}

// newShown returns what is known without a look at the present.
func newShown(d store.DeadLetter, actions []store.Action) Shown {
	shown := Shown{DeadLetter: d, Actions: actions}
	shown.TraceID, shown.SpanID = pipeline.TraceOf(d.TraceParent)
	if text := string(d.Payload); utf8.ValidString(text) {
		shown.Text = &text
	} else {
		shown.Bytes = d.Payload
	}
	return shown
}

func (s *session) showOne(ctx context.Context, d store.DeadLetter, actions []store.Action) error {
	shown := newShown(d, actions)
	if err := s.replayer.StartPreviews(ctx, []store.Target{d.Target()}); err != nil {
		return err
	}
	if status, err := s.replayer.Preview(ctx, d); err != nil {
		shown.NowUnknown = err.Error()
	} else {
		shown.Now = &status
	}
	return s.show(shown, shown.write)
}

// trace is the place in a trace in one line.
func (s *Shown) trace() string {
	if s.TraceID == "" {
		return quoted(s.TraceParent)
	}
	return s.TraceID + ", span " + s.SpanID
}

// now is the status in one line. It has the effect of a replay only for a dead letter that waits.
func (s *Shown) now() string {
	switch {
	case s.Now == nil:
		return "unknown: " + s.NowUnknown
	case slices.Contains(store.Waiting(), s.State):
		return s.Now.String()
	}
	return s.Now.State
}

func (s *Shown) write(out io.Writer) error {
	d := s.DeadLetter
	w := app.Table(out)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("dead letter", fmt.Sprintf("%s, %s, generation %d", app.Printable(d.ID), d.State, d.Generation))
	switch {
	case d.HeldUntil.After(time.Now()):
		row("replay", "its lease ends at "+d.HeldUntil.Format(time.RFC3339))
	case d.State == store.Replaying:
		row("replay", "it did not finish and its lease ended; the next replay resumes it")
	}
	row("about", quoted(d.Subject))
	row("now", OneLine(s.now(), 2000))
	row("error", OneLine(d.Class, errorWidth)+": "+OneLine(d.Error, 2000))
	row("fingerprint", d.Fingerprint)
	row("handler", quoted(d.Handler))
	row("from", quoted(strings.TrimSpace(d.Source.Kind+" "+d.Source.String())))
	row("dead-letter topic", quoted(d.Topic))
	row("attempts", fmt.Sprint(d.Attempts))
	row("failed first", d.FirstFailed.Format(time.RFC3339Nano))
	row("failed last", d.Failed.Format(time.RFC3339Nano))
	row("trace", s.trace())
	row("message id", quoted(d.UUID))
	row("key", quoted(d.Key))
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		row("header", quoted(name)+" = "+quoted(d.Headers[name]))
	}
	row("payload", quoted(string(d.Payload)))
	for _, a := range s.Actions {
		text := fmt.Sprintf("%s %s of generation %d: %s", a.At.Format(time.RFC3339), a.Action, a.Generation, a.Outcome)
		if a.Who != "" {
			text += fmt.Sprintf(", by %s (%s)", OneLine(a.Who, 200), OneLine(a.Why, 200))
		}
		if a.Detail != "" {
			text += ": " + OneLine(a.Detail, 300)
		}
		row("action", text)
	}
	return w.Flush()
}
