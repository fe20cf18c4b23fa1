package store

import "fmt"

// Status says what a replay or a discard of a dead letter would do now.
type Status struct {
	// State is that of the subject, in the ledger's words, such as "SUCCESS, b38e9ad7-296". Empty:
	// no ledger has it.
	State string `json:"state,omitempty"`
	// Replay is the outcome that a replay would have. The state of the dead letter itself is not
	// considered.
	Replay Outcome `json:"replay"`
	// To is the topic or stream that a replay would publish to. Empty: a ledger replays it.
	To string `json:"replay_to,omitempty"`
	// Unsettled says why the dead letter must not be discarded yet, and what to do first. Empty: it
	// may be discarded.
	Unsettled string `json:"unsettled,omitempty"`
	// Remains says what stays as it is after a discard, such as a payout that is not made. Empty:
	// nothing.
	Remains string `json:"remains,omitempty"`
}

// String is the status in one line.
func (s Status) String() string {
	text := s.State
	add := func(format string, args ...any) {
		if text != "" {
			text += "; "
		}
		text += fmt.Sprintf(format, args...)
	}
	switch s.Replay.Result {
	case OutcomeRefused:
		add("a replay would be refused: %s", s.Replay.Reason)
	case OutcomeAlready:
		add("a replay would have no effect: %s", s.Replay.Reason)
	case OutcomeReplayed:
		if s.To != "" {
			add("a replay would publish to %s", s.To)
		}
	}
	if s.Unsettled != "" {
		add("it must not be discarded yet: %s", s.Unsettled)
	}
	return text
}
