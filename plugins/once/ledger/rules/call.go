package rules

import "time"

// Outcome is the end of one call of the far side.
type Outcome string

// The outcomes of a call.
const (
	// Done: the effect has happened. CallResult.Receipt names it.
	Done Outcome = "done"
	// NotSent: no byte left the process, so nothing happened and the idempotency key was not used.
	// The call is released: it does not count as an attempt.
	NotSent Outcome = "not_sent"
	// Throttled: the far side itself states that it did nothing and that it refuses to work for now
	// (429, or 503 with Retry-After). The call is released.
	Throttled Outcome = "throttled"
	// TryAgain: the far side itself states that it did nothing (408, 425, a temporary refusal). The
	// attempt counts.
	TryAgain Outcome = "try_again"
	// Unclear: the request was written, and no reliable answer was received.
	Unclear Outcome = "unclear"
	// Unrecognized: perhaps done, because the answer may be a proxy's. The call is released.
	Unrecognized Outcome = "unrecognized"
	// Rejected: the far side refused permanently (400, 422). A rejected lookup counts and proves
	// nothing about the effect.
	Rejected Outcome = "rejected"
	// Misconfigured: the far side itself states that our credentials or our address are wrong (401,
	// 403, 404). The call is released.
	Misconfigured Outcome = "misconfigured"
	// NotDone: a lookup found no effect for the key. It is no proof, except with ByLookup.
	NotDone Outcome = "not_done"
	// Interrupted: the call was never started, because of a shutdown or too short a lease. The call
	// is released, and the effect is due again at once.
	Interrupted Outcome = "interrupted"
)

// valid reports whether o is one of the outcomes.
func (o Outcome) valid() bool {
	switch o {
	case Done, NotSent, Throttled, TryAgain, Unclear, Unrecognized, Rejected, Misconfigured, NotDone, Interrupted:
		return true
	}
	return false
}

// released reports whether the call does not count as an attempt or lookup.
func (o Outcome) released() bool {
	switch o {
	case NotSent, Throttled, Unrecognized, Misconfigured, Interrupted:
		return true
	}
	return false
}

// CallKind is the kind of a call.
type CallKind string

// The kinds of calls.
const (
	CallSend   CallKind = "send"   // the effect was requested
	CallLookup CallKind = "lookup" // the outcome of an idempotency key was looked up
)

// Attempt is one call of the far side. Its row is written when the outcome of the call is stored,
// so a call without a row may have been made: Row.OpenCall.
type Attempt struct {
	Epoch int64 `json:"epoch"`
	// Late: the answer arrived after another begin. It changed nothing.
	Late bool `json:"late,omitempty"`
	// Number is that of the send. A lookup repeats the number of the last send; 0 for a late
	// answer.
	Number    int       `json:"number"`
	Kind      CallKind  `json:"kind"`
	Instance  string    `json:"instance"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// EndedAt is zero, and Outcome empty, while no outcome is stored (Row.OpenCall).
	EndedAt time.Time `json:"ended_at,omitzero"`
	Outcome Outcome   `json:"outcome,omitempty"`
	// Receipt is set in a late attempt that is Done, because the row may never have it.
	Receipt string `json:"receipt,omitempty"`
	Class   string `json:"class,omitempty"`
	Answer  string `json:"answer,omitempty"`
	Status  int    `json:"status,omitempty"` // HTTP status; 0 without one
}

// Open reports whether the call has begun and no outcome of it is stored: it is under way, or its
// worker ended without a word. An open send may have taken effect.
func (a Attempt) Open() bool { return a.EndedAt.IsZero() }

// CallResult is the end of a call.
type CallResult struct {
	Epoch   int64 // of the begin that allowed the call
	Outcome Outcome
	// Counted: a released call counts towards Policy.MaxReleased, because calls for other effects
	// are being answered.
	Counted    bool
	Receipt    string        // with Done
	RetryAfter time.Duration // requested by the far side; the delay is never shorter
	Class      string        // short snake_case class of the error
	Answer     string        // answer of the far side, for operators; cut to 4 KiB
	Status     int           // HTTP status; 0 without one
	Route      string        // for a dead letter
	Feed       bool          // with Interrupted: the feeder enqueues it; no retry record
	postponed  bool          // by Postponed
}

func (r CallResult) fed() bool { return r.Feed && r.Outcome == Interrupted }

// Postponed returns a result for a call whose end can't be stored, because the database refuses the
// dead letter or the outcome event that belongs to it. The effect stays unsettled and spends no
// attempt, so the call is repeated later, with the same key, and its end is stored then. Without it
// the lease would expire: the effect would count as perhaps done, use up its attempts, and end
// UNKNOWN. The answer keeps what the far side said. lookup says that the call was a lookup.
func (r CallResult) Postponed(lookup bool) CallResult {
	said := string(r.Outcome)
	if r.Outcome == Done {
		said += ", receipt " + r.Receipt
	}
	switch {
	case r.Outcome.released():
	case !lookup && (r.Outcome == Rejected || r.Outcome == TryAgain):
		r.Outcome = Throttled // the far side said so
	default:
		r.Outcome = Unrecognized
	}
	r.Counted, r.Receipt, r.postponed = false, "", true
	r.Answer = "the database refused to store the end of this call (" + said + "): " + r.Answer
	return r
}

// Validate returns an error that wraps ErrInvalid for a wrong epoch or outcome.
func (r CallResult) Validate() error {
	if r.Epoch <= 0 || !r.Outcome.valid() {
		return Invalid("epoch %d with outcome %q", r.Epoch, r.Outcome)
	}
	return nil
}
