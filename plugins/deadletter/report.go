package deadletter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// What becomes of a letter, besides letters.OutcomeReplayed and its like.
const (
	resultDiscarded = "discarded"
	resultSkipped   = "skipped" // its state is not one to be worked on
	resultNotAsked  = "not_asked"
)

const (
	// maxLines bounds the letters that a report names.
	maxLines = 1000
	// reasonWidth is the room of a reason, the last column: a command in it must be whole.
	reasonWidth = 400
)

// Report is what `dead replay --json` and `dead discard --json` print. That of a dry run says what would be.
type Report struct {
	DryRun    bool   `json:"dry_run,omitempty"`
	Selected  int    `json:"selected"`
	Replayed  int    `json:"replayed"`
	Already   int    `json:"already"`             // replayed before: nothing was done
	Refused   int    `json:"refused"`             // must not be replayed, or discarded yet; they wait as before
	Failed    int    `json:"failed"`              // tried; the next replay finishes them
	Skipped   int    `json:"skipped"`             // discarded, parked without --parked, or unknown
	Discarded int    `json:"discarded"`           // of dead discard
	NotAsked  int    `json:"not_asked,omitempty"` // of a dry run: the ledger can't be asked what would become of them
	Letters   []Line `json:"letters"`             // those that were not simply done; of a dry run all; at most 1000
	More      int    `json:"more,omitempty"`
}

// Line is what became of one letter, or would become of it.
type Line struct {
	ID     string `json:"id"`
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"`
	// Of a dry run:
	About string `json:"about,omitempty"` // the letter's subject
	Class string `json:"class,omitempty"`
	Now   string `json:"now,omitempty"` // how the subject stands, in its ledger's words
}

func (r *Report) add(l Line) {
	quiet := false
	switch l.Result {
	case letters.OutcomeReplayed:
		r.Replayed, quiet = r.Replayed+1, true
	case resultDiscarded:
		r.Discarded, quiet = r.Discarded+1, true
	case letters.OutcomeAlready:
		r.Already++
	case letters.OutcomeRefused:
		r.Refused++
	case letters.OutcomeFailed:
		r.Failed++
	case resultNotAsked:
		r.NotAsked++
	default:
		r.Skipped++
	}
	switch {
	case quiet && !r.DryRun:
	case len(r.Letters) == maxLines:
		r.More++
	default:
		r.Letters = append(r.Letters, l)
	}
}

// bad reports whether something is left that was meant to be done.
func (r *Report) bad() bool { return r.Refused+r.Failed+r.Skipped > 0 }

// dryRun tells what would become of letters; would says it of one that is in one of these states.
func dryRun(ctx context.Context, h *app.Host, cmd *cobra.Command, s *letters.Store, f *workFlags, states []letters.State, would func(letters.Letter) Line) error {
	report := Report{DryRun: true, Letters: []Line{}}
	j := &job{store: s, filter: f.Filter, limit: f.limit}
	err := j.each(ctx, func(id string) error {
		report.Selected++
		l, _, err := s.Get(ctx, id)
		if err == nil && !slices.Contains(states, l.State) {
			err = &letters.StateError{ID: id, State: l.State, Generation: l.Generation}
		}
		line, not := notNow(id, err)
		switch {
		case not:
		case err != nil:
			return err
		default:
			line = would(l)
		}
		line.ID, line.About, line.Class = id, l.Subject, l.Class
		report.add(line)
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	return writeReport(h, cmd, &report)
}

// wouldReplay is the line of a letter that a replay would take.
func wouldReplay(now Standing, err error) Line {
	if err != nil {
		return Line{Result: resultNotAsked, Reason: err.Error()}
	}
	return Line{Result: now.Replay.Result, Reason: now.Replay.Reason, Now: now.State}
}

// wouldDiscard is the line of a letter that a discard would take; anyway: also one that isn't settled.
func wouldDiscard(now Standing, err error, anyway bool) Line {
	line := Line{Result: resultDiscarded, Reason: now.Remains, Now: now.State}
	if reason := unsettled(now, err); reason != "" {
		line.Reason = reason
		if !anyway {
			line.Result = letters.OutcomeRefused
		}
	}
	return line
}

func writeReport(h *app.Host, cmd *cobra.Command, r *Report) error {
	if h.JSON(cmd) {
		return h.WriteJSON(r)
	}
	w := tabwriter.NewWriter(h.Out(), 0, 0, 2, ' ', 0)
	for _, l := range r.Letters {
		if r.DryRun {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.ID, would(l.Result), l.what(), line(l.Reason, reasonWidth))
		} else {
			fmt.Fprintf(w, "%s\t%s\t%s\n", l.ID, l.Result, line(l.Reason, reasonWidth))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.More > 0 {
		fmt.Fprintf(h.Out(), "… and %d more\n", r.More)
	}
	fmt.Fprintln(h.Out(), r.summary())
	return nil
}

// would is how a dry run says a result.
func would(result string) string {
	switch result {
	case letters.OutcomeAlready:
		return "would have no effect"
	case resultNotAsked:
		return "can't be told"
	}
	return "would be " + result
}

// what tells what a letter is about.
func (l Line) what() string {
	text := strings.TrimSpace(l.About + " " + l.Class)
	if l.Now != "" {
		text += ", now " + l.Now
	}
	return line(text, 80)
}

// summary counts, in one sentence. A dry run means those letters that would be worked on.
func (r *Report) summary() string {
	var parts []string
	if r.DryRun {
		switch meant := r.Replayed + r.Discarded; meant {
		case 0:
			parts = append(parts, "No letter is meant")
		case 1:
			parts = append(parts, "1 letter is meant")
		default:
			parts = append(parts, fmt.Sprintf("%d letters are meant", meant))
		}
	}
	for _, c := range []struct {
		n           int
		done, would string
	}{
		{r.Replayed, "replayed", ""}, {r.Discarded, "discarded", ""},
		{r.Already, "replayed before", would(letters.OutcomeAlready)},
		{r.Refused, "refused", would(letters.OutcomeRefused)},
		{r.Failed, "failed", ""},
		{r.Skipped, "skipped", would(resultSkipped)},
		{r.NotAsked, "", would(resultNotAsked)},
	} {
		what := c.done
		if r.DryRun {
			what = c.would
		}
		if c.n > 0 && what != "" {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, what))
		}
	}
	text := strings.Join(parts, ", ")
	switch {
	case r.DryRun:
		return text + "; nothing was done."
	case r.Selected == 0:
		return "No letter is meant."
	}
	return counted(r.Selected, "letter") + ": " + text + "."
}

// counted returns a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
