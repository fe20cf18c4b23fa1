package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/store"
)

// ExplainedDeadLetter is a dead letter of a payout, with its state in the dead letter store.
type ExplainedDeadLetter struct {
	ledger.DeadLetter
	// its id in the store; empty: no store, or not there yet
	Name  string      `json:"letter,omitempty"`
	State store.State `json:"letter_state,omitempty"` // empty as Name
}

// Waits reports whether an operator must still decide.
func (l ExplainedDeadLetter) Waits() bool { return slices.Contains(store.Waiting(), l.State) }

// explainDeadLetters joins the dead letters that the ledger wrote about a payout with the store.
// The payout itself has one in the store, which is updated each time a replay fails. Each message
// that is not the stored record has its own.
func (c commands) explainDeadLetters(written []ledger.DeadLetter, known []store.DeadLetter) []ExplainedDeadLetter {
	byID, own := map[string]store.DeadLetter{}, store.DeadLetter{}
	for _, l := range known {
		byID[l.ID] = l
		if !payout.Offered(l.Class) {
			own = l
		}
	}
	all := []ExplainedDeadLetter{}
	for _, w := range written {
		l := own
		if payout.Offered(w.Class) {
			l = byID[c.DeadLetterID(ledger.OutboxMessage{ID: w.ID, CreatedAt: w.CreatedAt})]
		}
		all = append(all, ExplainedDeadLetter{w, l.ID, l.State})
	}
	return all
}

// deadLettersOf returns the payout's own dead letter, as it was written last, or the zero value.
// others are those of other messages that wait for an operator.
func deadLettersOf(all []ExplainedDeadLetter) (own ExplainedDeadLetter, others []ExplainedDeadLetter) {
	for _, l := range all {
		switch {
		case !payout.Offered(l.Class):
			own = l
		case l.Waits():
			others = append(others, l)
		}
	}
	return own, others
}

// onItsWay reports whether the dead letter was written and is not in the store yet.
func (l ExplainedDeadLetter) onItsWay() bool {
	return l.Class != "" && l.PublishedAt.IsZero() && !l.Waits() && l.State != store.Discarded
}

// replay names the command that replays the dead letter, or the reason why none can.
func (l ExplainedDeadLetter) replay() string {
	const fixed = "when the cause is fixed, replay its dead letter: "
	switch {
	case l.State == store.Parked:
		return fmt.Sprintf("%smillrace deadletter replay %s --parked, with --why.", fixed, l.Name)
	case l.Waits():
		return fmt.Sprintf("%smillrace deadletter replay %s, with --why.", fixed, l.Name)
	case l.onItsWay():
		return "its dead letter is not in the store yet; it can be replayed when millrace deadletter list shows it."
	case l.State == store.Discarded:
		return "its dead letter was discarded and can't be replayed."
	case l.State == store.Replayed:
		return "its dead letter was replayed before."
	}
	return "its dead letter is not in the store and can't be replayed."
}

func writeDeadLetters(w io.Writer, all []ExplainedDeadLetter) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\nDEAD LETTER\tSTATE\tWRITTEN\tCLASS\tATTEMPTS\tERROR\n")
	for _, l := range all {
		text := l.Error
		if l.Offered != "" {
			text += ": offered " + l.Offered
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", orDash(l.Name), orDash(string(l.State)), stamp(l.CreatedAt), app.Printable(l.Class), l.Attempts, app.Printable(text))
	}
}
