package rules

import "time"

// Outcome is the end of one call of the Money API.
type Outcome string

// The outcomes of a call.
const (
	// Paid: charged. CallResult.TransactionKey has the key.
	Paid Outcome = "paid"
	// NotSent: no byte left the process, so nothing was charged and the idempotency key was not
	// used. The call is released: it does not count as an attempt.
	NotSent Outcome = "not_sent"
	// NotCharged: the API itself states that nothing was charged and that it refuses to work for
	// now (429, or 503 with Retry-After). The call is released.
	NotCharged Outcome = "not_charged"
	// TryAgain: the API itself states that nothing was charged (408, 425, a temporary refusal). The
	// attempt counts.
	TryAgain Outcome = "try_again"
	// PerhapsCharged: the request was written, and no reliable answer was received.
	PerhapsCharged Outcome = "perhaps_charged"
	// Unrecognized: perhaps charged; the answer may be a proxy's. The call is released.
	Unrecognized Outcome = "unrecognized"
	// Rejected: the API refused permanently (400, 422). A rejected lookup counts and proves nothing
	// about the charge.
	Rejected Outcome = "rejected"
	// Misconfigured: the API itself states that our credentials or our address are wrong (401, 403,
	// 404). The call is released.
	Misconfigured Outcome = "own_fault"
	// NoCharge: a lookup found no charge for the key. It is no proof.
	NoCharge Outcome = "no_charge"
	// Interrupted: the call was never started, because of a shutdown or too short a lease. The call
	// is released, and the payout is due again at once.
	Interrupted Outcome = "interrupted"
)

// valid reports whether o is one of the outcomes.
func (o Outcome) valid() bool {
	switch o {
	case Paid, NotSent, NotCharged, TryAgain, PerhapsCharged, Unrecognized, Rejected, Misconfigured, NoCharge, Interrupted:
		return true
	}
	return false
}

// released reports whether the call does not count as an attempt or lookup.
func (o Outcome) released() bool {
	switch o {
	case NotSent, NotCharged, Unrecognized, Misconfigured, Interrupted:
		return true
	}
	return false
}

// CallKind is the kind of a call.
type CallKind string

// The kinds of calls.
const (
	CallSend   CallKind = "send" // a charge was requested
	CallLookup CallKind = "ask"  // the outcome of an idempotency key was looked up
)

// Attempt is one call of the Money API. Its row is written when the outcome of the call is stored,
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
	Class   string    `json:"class,omitempty"`
	Answer  string    `json:"answer,omitempty"`
	Status  int       `json:"status,omitempty"` // HTTP status; 0 without one
}

// Open reports whether the call has begun and no outcome of it is stored: it is under way, or its
// worker ended without a word. An open send may have charged.
func (a Attempt) Open() bool { return a.EndedAt.IsZero() }

// LateKeyPrefix precedes the transaction key in the Answer of a late attempt.
const LateKeyPrefix = "transaction key "

// CallResult is the end of a call.
type CallResult struct {
	Key     Key
	Epoch   int64 // of the begin that allowed the call
	Outcome Outcome
	// Counted: a released call counts towards Policy.MaxReleased, because calls for other payouts
	// are being answered.
	Counted        bool
	TransactionKey string        // with Paid
	RetryAfter     time.Duration // requested by the API; the delay is never shorter
	Class          string        // short snake_case class of the error
	Answer         string        // answer of the API, for operators; cut to 4 KiB
	Status         int           // HTTP status; 0 without one
	Route          string        // for a dead letter
	Feed           bool          // with Interrupted: the feeder enqueues it; no retry record
	postponed      bool          // by Postponed
}

func (r CallResult) fed() bool { return r.Feed && r.Outcome == Interrupted }

// Postponed returns a result for a call whose end can't be stored, because the database refuses the
// dead letter or the outcome event that belongs to it. The payout stays unsettled and spends no
// attempt, so the call is repeated later, with the same key, and its end is stored then. Without it
// the lease would expire: the payout would count as perhaps charged, use up its attempts, and end
// UNKNOWN. The answer keeps what the API said. lookup says that the call was a lookup.
func (r CallResult) Postponed(lookup bool) CallResult {
	said := string(r.Outcome)
	if r.Outcome == Paid {
		said += ", " + LateKeyPrefix + r.TransactionKey
	}
	switch {
	case r.Outcome.released():
	case !lookup && (r.Outcome == Rejected || r.Outcome == TryAgain):
		r.Outcome = NotCharged // the API said so
	default:
		r.Outcome = Unrecognized
	}
	r.Counted, r.TransactionKey, r.postponed = false, "", true
	r.Answer = "the database refused to store the end of this call (" + said + "): " + r.Answer
	return r
}

// Validate returns an error that wraps ErrInvalid for a wrong key, epoch or outcome.
func (r CallResult) Validate() error {
	if err := r.Key.Validate(); err != nil {
		return err
	}
	if r.Epoch <= 0 || !r.Outcome.valid() {
		return Invalid("payout %s: epoch %d with outcome %q", r.Key, r.Epoch, r.Outcome)
	}
	return nil
}
