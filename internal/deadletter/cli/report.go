package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// The results of a dead letter in addition to store.OutcomeReplayed and its like.
const (
	resultDiscarded = "discarded"
	resultSkipped   = "skipped" // its state allows no change, or another replay holds it
	resultUnknown   = "unknown" // of a dry run: the ledger is unavailable
)

const (
	// maxLines bounds the dead letters that a report lists.
	maxLines = 1000
	// reasonWidth is the width of a reason, in the last column. A reason may contain a complete
	// command.
	reasonWidth = 400
)

// Report is the output of replay --json and discard --json. The report of a dry run says what would
// be done.
type Report struct {
	DryRun      bool   `json:"dry_run,omitempty"`
	Selected    int    `json:"selected"`
	Replayed    int    `json:"replayed"`
	Resumed     int    `json:"resumed,omitempty"` // an earlier replay did not finish
	Already     int    `json:"already"`           // replayed before: nothing was done
	Refused     int    `json:"refused"`           // not allowed; they wait as before
	Failed      int    `json:"failed"`            // the next replay resumes them
	Skipped     int    `json:"skipped"`           // their state allows no change, or not found
	Discarded   int    `json:"discarded"`
	Unknown     int    `json:"unknown,omitempty"` // of a dry run: the ledger is unavailable
	DeadLetters []Line `json:"dead_letters"`      // at most 1000
	More        int    `json:"more,omitempty"`
	// Matching, About and Would are of a dry run: how many match, also beyond --limit, what the selected
	// ones are about, and what would be done to those of each handler.
	Matching int64   `json:"matching,omitempty"`
	About    []Topic `json:"about,omitempty"` // most first, at most 1000
	Would    []Would `json:"would,omitempty"` // most first, at most 1000
}

// Topic is a part of a subject that dead letters share: of POINT:77:5 it is POINT:77.
type Topic struct {
	Subject string `json:"subject"` // empty: no subject
	Count   int    `json:"count"`
}

// Line is the result of one dead letter.
type Line struct {
	ID      string `json:"id"`
	Result  string `json:"result"`
	Reason  string `json:"reason,omitempty"`
	Resumed bool   `json:"resumed,omitempty"` // an earlier replay did not finish
	// About, Class and Now are of a dry run.
	About string `json:"about,omitempty"` // the subject
	Class string `json:"class,omitempty"`
	Now   string `json:"now,omitempty"` // the state of the subject, in the ledger's words

	to string // that a replay would publish to
}

func (r *Report) addLine(l Line) {
	done := false
	switch l.Result {
	case store.OutcomeReplayed:
		r.Replayed++
		done = !l.Resumed
	case resultDiscarded:
		r.Discarded++
		done = true
	case store.OutcomeAlready:
		r.Already++
	case store.OutcomeRefused:
		r.Refused++
	case store.OutcomeFailed:
		r.Failed++
	case resultUnknown:
		r.Unknown++
	default:
		r.Skipped++
	}
	if l.Resumed {
		r.Resumed++
	}
	switch {
	case done && !r.DryRun:
	case len(r.DeadLetters) == maxLines:
		r.More++
	default:
		r.DeadLetters = append(r.DeadLetters, l)
	}
}

// incomplete reports whether a selected dead letter was not done.
func (r *Report) incomplete() bool { return r.Refused+r.Failed+r.Skipped > 0 }

// answer returns the report for people, too. Without a result it has no words, because the error that
// comes with it says why.
func (r *Report) answer(failed bool) operate.Answer {
	a := operate.Answer{Value: r}
	if failed && r.Selected == 0 {
		return a
	}
	table := operate.Table{}
	for _, l := range r.DeadLetters {
		row := []string{OneLine(l.ID, reasonWidth), l.Result, OneLine(l.Reason, reasonWidth)}
		if r.DryRun {
			row = []string{OneLine(l.ID, reasonWidth), would(l.Result), l.about(), OneLine(l.Reason, reasonWidth)}
		}
		table.Rows = append(table.Rows, row)
	}
	a.Tables = []operate.Table{table}
	if len(r.Would) > 0 {
		a.Tables = append(a.Tables, wouldTable(r.Would))
	}
	if r.More > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("… and %d more", r.More))
	}
	if text := r.matching(); text != "" {
		a.Notes = append(a.Notes, text)
	}
	a.Notes = append(a.Notes, r.summary())
	return a
}

// matching says how many dead letters match, and what they are about.
func (r *Report) matching() string {
	if !r.DryRun || r.Matching == 0 {
		return ""
	}
	text := app.Plural(r.Matching, "dead letter") + " match"
	if r.Matching == 1 {
		text += "es"
	}
	if int64(r.Selected) < r.Matching {
		text += fmt.Sprintf(", and the limit selects %d of them", r.Selected)
	}
	var parts []string
	for _, t := range r.About {
		switch {
		case t.Subject == "" && len(r.About) == 1:
			return text + "."
		case len(parts) == maxNamed:
		case t.Subject == "":
			parts = append(parts, fmt.Sprintf("%d without a subject", t.Count))
		default:
			parts = append(parts, fmt.Sprintf("%d about %s", t.Count, OneLine(t.Subject, reasonWidth)))
		}
	}
	if more := len(r.About) - len(parts); more > 0 {
		parts = append(parts, app.Plural(int64(more), "further subject"))
	}
	return text + ": " + strings.Join(parts, ", ") + "."
}

// countTopics fills About.
func (r *Report) countTopics(count map[string]int) {
	for subject, n := range count {
		r.About = append(r.About, Topic{subject, n})
	}
	sorted.By(r.About, func(a, b Topic) int { return cmp.Or(b.Count-a.Count, strings.Compare(a.Subject, b.Subject)) })
	r.About = r.About[:min(len(r.About), maxLines)]
}

// topicOf returns what a subject is a part of.
func topicOf(subject string) string {
	if i := strings.LastIndexByte(subject, ':'); i > 0 {
		return subject[:i]
	}
	return subject
}

// would is a result in a dry run.
func would(result string) string {
	switch result {
	case store.OutcomeAlready:
		return "would have no effect"
	case resultUnknown:
		return "unknown"
	}
	return "would be " + result
}

// about is the subject of a dead letter, its class and the state of the subject.
func (l Line) about() string {
	text := strings.TrimSpace(l.About + " " + l.Class)
	if l.Now != "" {
		text += ", now " + l.Now
	}
	return OneLine(text, 80)
}

// summary is the counts in one sentence.
func (r *Report) summary() string {
	if r.Selected == 0 {
		return "No dead letters match."
	}
	var parts []string
	for _, c := range []struct {
		n           int
		done, would string
	}{
		{r.Replayed, "replayed", "would be replayed"},
		{r.Discarded, "discarded", "would be discarded"},
		{r.Already, "replayed before", would(store.OutcomeAlready)},
		{r.Refused, "refused", would(store.OutcomeRefused)},
		{r.Failed, "failed", ""},
		{r.Skipped, "skipped", would(resultSkipped)},
		{r.Unknown, "", would(resultUnknown)},
		{r.Resumed, "of an earlier replay that did not finish", "of an earlier replay that did not finish"},
	} {
		text := c.done
		if r.DryRun {
			text = c.would
		}
		if c.n > 0 && text != "" {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, text))
		}
	}
	text := app.Plural(int64(r.Selected), "dead letter") + ": " + strings.Join(parts, ", ")
	if r.DryRun {
		return text + "; nothing was changed."
	}
	return text + "."
}

// errorWidth is the width of an error, in the last column of a table.
const errorWidth = 160

// OneLine returns text as one line, without characters that control a terminal. Lines are joined
// with semicolons, because each is often an error of its own. limit is the largest length in
// characters. A longer text loses its middle, because the end of an error says what happened.
func OneLine(text string, limit int) string {
	text = app.Printable(logs.OneLine(text))
	if r := []rune(text); len(r) > limit {
		head := (limit - 1) / 2
		return string(r[:head]) + "…" + string(r[len(r)-(limit-1-head):])
	}
	return text
}

// quoted returns text unchanged if a terminal shows it as it is, otherwise escaped.
func quoted(text string) string {
	if text == app.Printable(text) && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	escaped, _ := json.Marshal(text) // a string always encodes
	return app.Printable(string(escaped))
}
