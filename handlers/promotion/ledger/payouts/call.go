package payouts

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// CallResult is the end of a call for a payout.
type CallResult struct {
	Key Key
	rules.CallResult
}

// Validate returns an error that wraps rules.ErrInvalid for a wrong key, epoch or outcome.
func (r CallResult) Validate() error {
	if err := r.Key.Validate(); err != nil {
		return err
	}
	if err := r.CallResult.Validate(); err != nil {
		return fmt.Errorf("payout %s: %w", r.Key, err)
	}
	return nil
}

// Postponed is rules.CallResult.Postponed, with an answer in the words of the promotion.
func (r CallResult) Postponed(lookup bool) CallResult {
	said := string(OutcomeOf(r.Outcome))
	if r.Outcome == rules.Done {
		said += ", " + lateKeyPrefix + r.Receipt
	}
	answer := r.Answer
	r.CallResult = r.CallResult.Postponed(lookup)
	r.Answer = "the database refused to store the end of this call (" + said + "): " + answer
	return r
}

// Outcome is the end of one call of the Money API, as the table of attempts and the reports name it.
type Outcome string

// The outcomes of a call. Those that have another name in package rules say which one.
const (
	Paid           Outcome = "paid"            // rules.Done
	PerhapsCharged Outcome = "perhaps_charged" // rules.Unclear
	NotCharged     Outcome = "not_charged"     // rules.Throttled
	NoCharge       Outcome = "no_charge"       // rules.NotDone
	Misconfigured  Outcome = "own_fault"       // rules.Misconfigured
	NotSent        Outcome = "not_sent"
	TryAgain       Outcome = "try_again"
	Unrecognized   Outcome = "unrecognized"
	Rejected       Outcome = "rejected"
	Interrupted    Outcome = "interrupted"
)

// OutcomeOf returns the promotion's word for an outcome.
func OutcomeOf(o rules.Outcome) Outcome {
	switch o {
	case rules.Done:
		return Paid
	case rules.Unclear:
		return PerhapsCharged
	case rules.Throttled:
		return NotCharged
	case rules.NotDone:
		return NoCharge
	case rules.Misconfigured:
		return Misconfigured
	}
	return Outcome(o)
}

// CallKind is the kind of a call, as the table of attempts and the reports name it.
type CallKind string

// The kinds of calls.
const (
	CallSend   CallKind = "send" // a charge was requested
	CallLookup CallKind = "ask"  // the outcome of an idempotency key was looked up
)

// Attempt is one call of the Money API, as its row in the table of attempts and the reports have it.
type Attempt struct {
	Epoch int64 `json:"epoch"`
	// Late: the answer arrived after another begin. It changed nothing.
	Late bool `json:"late,omitempty"`
	// Number is that of the send. A lookup repeats the number of the last send; 0 for a late answer.
	Number    int       `json:"number"`
	Kind      CallKind  `json:"kind"`
	Instance  string    `json:"instance"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// EndedAt is zero, and Outcome empty, while no outcome is stored (rules.Row.OpenCall).
	EndedAt time.Time `json:"ended_at,omitzero"`
	Outcome Outcome   `json:"outcome,omitempty"`
	Class   string    `json:"class,omitempty"`
	// Answer is the Money API's. That of a late answer which states a charge is the transaction key,
	// because the row of the payout may never have it.
	Answer string `json:"answer,omitempty"`
	Status int    `json:"status,omitempty"` // HTTP status; 0 without one
}

// lateKeyPrefix precedes the transaction key in the Answer of a late attempt.
const lateKeyPrefix = "transaction key "

// AttemptOf returns an attempt in the words of the promotion.
func AttemptOf(a rules.Attempt) Attempt {
	of := Attempt{Epoch: a.Epoch, Late: a.Late, Number: a.Number, Kind: CallSend, Instance: a.Instance, StartedAt: a.StartedAt,
		EndedAt: a.EndedAt, Outcome: OutcomeOf(a.Outcome), Class: a.Class, Answer: a.Answer, Status: a.Status}
	if a.Kind == rules.CallLookup {
		of.Kind = CallLookup
	}
	if a.Late && a.Outcome == rules.Done {
		of.Answer = lateKeyPrefix + a.Receipt
	}
	return of
}

// Open reports whether the call has begun and no outcome of it is stored: it is under way, or its
// worker ended without a word. An open send may have charged.
func (a Attempt) Open() bool { return a.EndedAt.IsZero() }

// PaidLate returns the transaction key of a late answer that states a charge, or "".
func (a Attempt) PaidLate() string {
	if key, ok := strings.CutPrefix(a.Answer, lateKeyPrefix); ok && a.Late && a.Outcome == Paid {
		return key
	}
	return ""
}
