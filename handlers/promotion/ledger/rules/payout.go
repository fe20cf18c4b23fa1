package rules

import (
	"cmp"
	"strconv"
	"time"
)

// Type is the type of a promotion, such as POINT: an upper-case word. Any such word is accepted.
type Type string

// Promotion identifies a campaign.
type Promotion struct {
	Type Type
	ID   int64
}

// String returns TYPE:promotion.
func (p Promotion) String() string { return string(p.Type) + ":" + strconv.FormatInt(p.ID, 10) }

// StreamID returns the id of the promotion's stream.
func (p Promotion) StreamID() string { return strconv.FormatInt(p.ID, 10) }

// PromotionOfStream returns the promotion of a stream by its StreamID. Any other text, such as 007, is an
// error that wraps ErrInvalid.
func PromotionOfStream(t Type, id string) (Promotion, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	p := Promotion{Type: t, ID: n}
	if err != nil || n <= 0 || p.StreamID() != id {
		return Promotion{}, Invalid("stream %q of type %s: want a positive number, as the promotion has it", id, t)
	}
	return p, nil
}

// Validate returns an error that wraps ErrInvalid for a wrong type or id.
func (p Promotion) Validate() error {
	if len(p.Type) == 0 || len(p.Type) > 32 || p.ID <= 0 {
		return Invalid("promotion %q: want an upper-case type and a positive id", p.String())
	}
	for i, c := range []byte(p.Type) {
		if (c < 'A' || c > 'Z') && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return Invalid("promotion %q: type must be an upper-case word", p.String())
		}
	}
	return nil
}

// Key identifies a payout: one target of one promotion.
type Key struct {
	Type      Type
	Promotion int64
	Target    int64
}

// String returns TYPE:promotion:target, which is also the payout's idempotency key.
func (k Key) String() string {
	return string(k.Type) + ":" + strconv.FormatInt(k.Promotion, 10) + ":" + strconv.FormatInt(k.Target, 10)
}

// OfPromotion returns the promotion of the payout.
func (k Key) OfPromotion() Promotion { return Promotion{k.Type, k.Promotion} }

// Validate returns an error that wraps ErrInvalid for a wrong promotion or target.
func (k Key) Validate() error {
	if k.Target <= 0 {
		return Invalid("payout %s: target must be positive", k)
	}
	return k.OfPromotion().Validate()
}

// ComparePromotions orders promotions by type and id.
func ComparePromotions(a, b Promotion) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID))
}

// CompareKeys is the order in which every transaction locks rows, so that batches can't deadlock.
func CompareKeys(a, b Key) int {
	return cmp.Or(ComparePromotions(a.OfPromotion(), b.OfPromotion()), cmp.Compare(a.Target, b.Target))
}

// State is the state of a payout.
type State string

// The states of a payout.
const (
	Pending   State = "PENDING"   // accepted; no begin yet
	Sending   State = "SENDING"   // a worker has a lease, or had one and crashed
	Errored   State = "ERROR"     // not charged; will be retried
	Ambiguous State = "AMBIGUOUS" // perhaps charged; sent again with the same key, or looked up
	Success   State = "SUCCESS"   // paid
	Failed    State = "FAILED"    // certainly not charged, and nothing is tried any more
	Unknown   State = "UNKNOWN"   // perhaps charged, and nothing is tried any more: for an operator
	Cancelled State = "CANCELLED" // certainly not charged; the promotion was cancelled
)

// Settled reports whether only an operator can change the payout.
func (s State) Settled() bool {
	switch s {
	case Success, Failed, Unknown, Cancelled:
		return true
	}
	return false
}

// QueueLocation is where the next delivery of a payout is expected.
type QueueLocation string

// The queue locations.
const (
	QueueNone   QueueLocation = "none"   // in no queue: the feeder enqueues it
	QueueStream QueueLocation = "stream" // an entry in the promotion's stream
	QueueRetry  QueueLocation = "retry"  // a retry record, or the lease of a worker
)

// PromotionState is the state of a promotion.
type PromotionState string

// The states of a promotion.
const (
	PromotionRunning   PromotionState = "RUNNING"
	PromotionPaused    PromotionState = "PAUSED"    // no begin until an operator resumes it
	PromotionCancelled PromotionState = "CANCELLED" // final; no request is sent any more
)

// Row is the part of a payout that changes. A zero time means none.
type Row struct {
	ID int64 // surrogate key, used by updates
	Key
	SummaryID int64
	State     State

	Queue QueueLocation
	// QueueDue is the due time of the retry record or the lease. For stream and none it is the time
	// of the change.
	QueueDue time.Time
	Version  int64 // incremented by every change

	Epoch         int64 // number of begins; a settle with another epoch changes nothing
	Attempts      int   // sends that were not released
	Lookups       int   // lookups that were not released
	Released      int   // counted releases since the accept or the last replay (CallResult.Counted)
	Failures      int   // calls that did not end paid; determines the back-off
	Interruptions int   // expired leases, and calls that were never started

	LeaseUntil    time.Time // set while SENDING
	NextAttemptAt time.Time // no begin before
	FirstSentAt   time.Time // start of the oldest request that may have charged
	// KeyFirstUsedAt is the first time that the idempotency key may have reached the API. Only a
	// call of which no byte left the process clears it, and only if that call set it.
	KeyFirstUsedAt time.Time
	MaybeCharged   bool // an earlier attempt may have charged
	// LookingUp: in SENDING the call is a lookup. In AMBIGUOUS and ERROR the next call must be one.
	LookingUp bool
	// NoChargeSeen: a lookup found no charge, and no request was sent since. While SENDING: before
	// this call.
	NoChargeSeen bool

	TransactionKey   string
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
// false when the payout was never begun, and when the outcome of its last begin is stored.
func (r Row) OpenCall() (a Attempt, ok bool) {
	if r.State != Sending {
		return Attempt{}, false
	}
	return Attempt{Epoch: r.Epoch, Number: r.Attempts, Kind: r.callKind(), Instance: r.AttemptBy, StartedAt: r.AttemptStartedAt}, true
}

// PerhapsCharged reports whether a request may have charged, those without a stored outcome
// included.
func (r Row) PerhapsCharged() bool {
	open, ok := r.OpenCall()
	return r.MaybeCharged || ok && open.Kind == CallSend
}

// cancellable reports whether the row has certainly not charged and no call is running.
func (r Row) cancellable() bool {
	return (r.State == Pending || r.State == Errored) && !r.MaybeCharged
}

func (r Row) queuedIn(location QueueLocation, due time.Time) Row {
	r.Queue, r.QueueDue = location, due
	r.Version++ // even when nothing else changes: the old entry or retry record is used up
	return r
}

// settled moves the row to a final state. FAILED or CANCELLED becomes UNKNOWN when a charge is
// possible.
func (r Row) settled(s State, now time.Time) (Row, Effects) {
	if r.MaybeCharged && s != Success {
		s = Unknown
	}
	r.State, r.SettledAt = s, now
	r.LeaseUntil, r.NextAttemptAt, r.LookingUp = time.Time{}, time.Time{}, false
	eff := Effects{Settled: true}
	switch s {
	case Failed:
		eff.DeadLetterClass = ClassFailed
	case Unknown:
		eff.DeadLetterClass = ClassUnknown
	}
	return r, eff
}
