package promotion

import (
	"fmt"
	"io"
	"slices"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// ExplainedLetter is a dead letter of a payout, with what became of it in the working copy.
type ExplainedLetter struct {
	ledger.Letter
	Name  string        `json:"letter,omitempty"`       // its id for `millrace dead`; empty: there is no working copy, or it is on its way there
	State letters.State `json:"letter_state,omitempty"` // empty as Name
}

// Waits tells whether a person must still decide.
func (l ExplainedLetter) Waits() bool { return slices.Contains(letters.Waiting(), l.State) }

// explainLetters joins what the ledger wrote of a payout with the working copy. A payout has one letter there, which
// comes again each time a replay fails; a record that came second has one of its own.
func explainLetters(written []ledger.Letter, known []letters.Letter) []ExplainedLetter {
	byID, own := map[string]letters.Letter{}, letters.Letter{}
	for _, l := range known {
		byID[l.ID] = l
		if !offered(l.Class) {
			own = l
		}
	}
	all := []ExplainedLetter{}
	for _, w := range written {
		l := own
		if offered(w.Class) {
			l = byID[letterID(ledger.Message{ID: w.ID, CreatedAt: w.CreatedAt})]
		}
		all = append(all, ExplainedLetter{w, l.ID, l.State})
	}
	return all
}

// lettersOf returns the payout's own letter as it was written last (or the zero one), and those of other messages that
// wait for a person.
func lettersOf(all []ExplainedLetter) (own ExplainedLetter, others []ExplainedLetter) {
	for _, l := range all {
		switch {
		case !offered(l.Class):
			own = l
		case l.Waits():
			others = append(others, l)
		}
	}
	return own, others
}

// onItsWay tells whether the letter was written and has not reached the working copy yet.
func (l ExplainedLetter) onItsWay() bool {
	return l.Class != "" && l.PublishedAt.IsZero() && !l.Waits() && l.State != letters.Discarded
}

// replay says how the letter is replayed, or why it can't be.
func (l ExplainedLetter) replay() string {
	const mended = "when the cause is mended, replay its dead letter: "
	switch {
	case l.State == letters.Parked:
		return fmt.Sprintf("%smillrace dead replay %s --parked, with --why.", mended, l.Name)
	case l.Waits():
		return fmt.Sprintf("%smillrace dead replay %s, with --why.", mended, l.Name)
	case l.onItsWay():
		return "its dead letter is still on its way; it can be replayed when millrace dead list shows it."
	case l.State == letters.Discarded:
		return "its dead letter was discarded; nothing can replay it."
	case l.State == letters.Replayed:
		return "its dead letter was replayed before and does not wait."
	}
	return "there is no working copy of its dead letter; nothing can replay it."
}

func writeLetters(w io.Writer, all []ExplainedLetter) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\nDEAD LETTER\tNOW\tWRITTEN\tCLASS\tATTEMPTS\tERROR\n")
	for _, l := range all {
		text := l.Error
		if l.Rival != "" {
			text += ": it wanted " + l.Rival
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", orDash(l.Name), orDash(string(l.State)), stamp(l.CreatedAt), app.Printable(l.Class), l.Attempts, app.Printable(text))
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
