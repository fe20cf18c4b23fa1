package rules

import (
	"time"
)

// State is the state of an effect.
type State string

// The states of an effect.
const (
	Pending   State = "PENDING"   // accepted; no begin yet
	Sending   State = "SENDING"   // a worker has a lease, or had one and crashed
	Errored   State = "ERROR"     // not done; will be retried
	Ambiguous State = "AMBIGUOUS" // perhaps done; sent again with the same key, or looked up
	Success   State = "SUCCESS"   // done
	Failed    State = "FAILED"    // certainly not done, and nothing is tried any more
	Unknown   State = "UNKNOWN"   // perhaps done, and nothing is tried any more: for an operator
	Cancelled State = "CANCELLED" // certainly not done; the group was cancelled
)

// Settled reports whether only an operator can change the effect.
func (s State) Settled() bool {
	switch s {
	case Success, Failed, Unknown, Cancelled:
		return true
	}
	return false
}

// QueueLocation is where the next delivery of an effect is expected.
type QueueLocation string

// The queue locations.
const (
	QueueNone   QueueLocation = "none"   // in no queue: the feeder enqueues it
	QueueStream QueueLocation = "stream" // an entry in the group's stream
	QueueRetry  QueueLocation = "retry"  // a retry record, or the lease of a worker
)

// GroupState is the state of a group.
type GroupState string

// The states of a group.
const (
	GroupRunning   GroupState = "RUNNING"
	GroupPaused    GroupState = "PAUSED"    // no begin until an operator resumes it
	GroupCancelled GroupState = "CANCELLED" // final; no request is sent any more
)

// Row is the part of an effect that changes. A zero time means none.
type Row struct {
	State State

	Queue QueueLocation
	// QueueDue is the due time of the retry record or the lease. For stream and none it is the time
	// of the change.
	QueueDue time.Time
	Version  int64 // incremented by every change

	Epoch         int64 // number of begins; a settle with another epoch changes nothing
	Attempts      int   // sends that were not released
	Lookups       int   // lookups that were not released
	Released      int   // counted releases since the accept or the last replay (CallResult.Counted)
	Failures      int   // calls that did not end done; determines the back-off
	Interruptions int   // expired leases, and calls that were never started

	LeaseUntil    time.Time // set while SENDING
	NextAttemptAt time.Time // no begin before
	FirstSentAt   time.Time // start of the oldest request that may have taken effect
	// KeyFirstUsedAt is the first time that the idempotency key may have reached the far side. Only a
	// call of which no byte left the process clears it, and only if that call set it.
	KeyFirstUsedAt time.Time
	MaybeDone      bool // an earlier attempt may have taken effect
	// LookingUp: in SENDING the call is a lookup. In AMBIGUOUS and ERROR the next call must be one.
	LookingUp bool
	// NotDoneSeen: a lookup found no effect, and no request was sent since. While SENDING: before
	// this call.
	NotDoneSeen bool

	Receipt          string
	LastClass        string
	LastError        string
	AttemptStartedAt time.Time
	AttemptBy        string // instance of the last begin
	AcceptedAt       time.Time
	SettledAt        time.Time
}

// KeyAge returns the time since the idempotency key may have been used first, and 0 for an unused
// key.
func (r Row) KeyAge(now time.Time) time.Duration {
	first := r.KeyFirstUsedAt
	// Rows of an earlier version have no first use. A late answer may prove an older request.
	if first.IsZero() || !r.FirstSentAt.IsZero() && r.FirstSentAt.Before(first) {
		first = r.FirstSentAt
	}
	if first.IsZero() {
		return 0
	}
	return now.Sub(first)
}

func (r Row) callKind() CallKind {
	if r.LookingUp {
		return CallLookup
	}
	return CallSend
}

// OpenCall returns the call that the last begin allowed, while no outcome of it is stored. ok is
// false when the effect was never begun, and when the outcome of its last begin is stored.
func (r Row) OpenCall() (a Attempt, ok bool) {
	if r.State != Sending {
		return Attempt{}, false
	}
	return Attempt{Epoch: r.Epoch, Number: r.Attempts, Kind: r.callKind(), Instance: r.AttemptBy, StartedAt: r.AttemptStartedAt}, true
}

// PerhapsDone reports whether a request may have taken effect, those without a stored outcome
// included.
func (r Row) PerhapsDone() bool {
	open, ok := r.OpenCall()
	return r.MaybeDone || ok && open.Kind == CallSend
}

// cancellable reports whether the row has certainly not done and no call is running.
func (r Row) cancellable() bool {
	return (r.State == Pending || r.State == Errored) && !r.MaybeDone
}

// cancellable reports whether the row has certainly not done, also in a time that the ledger has lost.
func (p Policy) cancellable(row Row) bool {
	_, lost := p.lost(row)
	return row.cancellable() && !lost
}

func (r Row) queuedIn(location QueueLocation, due time.Time) Row {
	r.Queue, r.QueueDue = location, due
	r.Version++ // even when nothing else changes: the old entry or retry record is used up
	return r
}

// settled moves the row to a final state. FAILED or CANCELLED becomes UNKNOWN when the effect
// may have happened.
func (r Row) settled(s State, now time.Time) (Row, Writes) {
	if r.MaybeDone && s != Success {
		s = Unknown
	}
	r.State, r.SettledAt = s, now
	r.LeaseUntil, r.NextAttemptAt, r.LookingUp = time.Time{}, time.Time{}, false
	eff := Writes{Settled: true}
	switch s {
	case Failed:
		eff.DeadLetterClass = ClassFailed
	case Unknown:
		eff.DeadLetterClass = ClassUnknown
	}
	return r, eff
}
