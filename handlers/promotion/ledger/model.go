package ledger

import (
	"fmt"
	"strconv"
	"time"
)

// Type is a kind of payout, such as POINT: an upper-case word. The ledger does not know which exist.
type Type string

// Promotion names a campaign.
type Promotion struct {
	Type Type
	ID   int64
}

// String returns TYPE:promotion.
func (p Promotion) String() string { return string(p.Type) + ":" + strconv.FormatInt(p.ID, 10) }

func (p Promotion) validate() error {
	if len(p.Type) == 0 || len(p.Type) > 32 || p.ID <= 0 {
		return invalid("promotion %q: want an upper-case type and a positive id", p.String())
	}
	for i, c := range []byte(p.Type) {
		if (c < 'A' || c > 'Z') && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return invalid("promotion %q: type must be an upper-case word", p.String())
		}
	}
	return nil
}

// Key names a payout: one target of one promotion.
type Key struct {
	Type      Type
	Promotion int64
	Target    int64
}

// String returns TYPE:promotion:target, which is also the payout's idempotency key at the Money API.
func (k Key) String() string {
	return string(k.Type) + ":" + strconv.FormatInt(k.Promotion, 10) + ":" + strconv.FormatInt(k.Target, 10)
}

// Of returns the promotion that the payout belongs to.
func (k Key) Of() Promotion { return Promotion{k.Type, k.Promotion} }

func (k Key) validate() error {
	if k.Target <= 0 {
		return invalid("payout %s: target must be positive", k)
	}
	return k.Of().validate()
}

func comparePromotions(a, b Promotion) int {
	switch {
	case a.Type != b.Type:
		return compare(a.Type, b.Type)
	default:
		return compare(a.ID, b.ID)
	}
}

// compareKeys is the order in which rows are locked everywhere, so that batches cannot deadlock.
func compareKeys(a, b Key) int {
	if c := comparePromotions(a.Of(), b.Of()); c != 0 {
		return c
	}
	return compare(a.Target, b.Target)
}

func compare[T ~string | ~int64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// State is the state of a payout.
type State string

// The states of a payout.
const (
	Pending   State = "PENDING"   // accepted, never begun
	Sending   State = "SENDING"   // begun: a worker holds a lease, or held one and died
	Errored   State = "ERROR"     // not charged; will be retried
	Ambiguous State = "AMBIGUOUS" // perhaps charged; sent again with the same key, or asked
	Success   State = "SUCCESS"   // paid
	Failed    State = "FAILED"    // certainly not charged, and given up
	Unknown   State = "UNKNOWN"   // perhaps charged, and given up: for a person
	Cancelled State = "CANCELLED" // certainly not charged, the promotion was cancelled
)

// Settled reports whether nothing but a person changes the payout any more.
func (s State) Settled() bool {
	switch s {
	case Success, Failed, Unknown, Cancelled:
		return true
	}
	return false
}

// Hint is where the ledger believes a payout's hint to be.
type Hint string

// The places of a hint.
const (
	HintNone   Hint = "none"   // nowhere: the feeder enqueues it
	HintStream Hint = "stream" // an entry in the promotion's stream
	HintRetry  Hint = "retry"  // a retry record, or a worker's lease
)

// PromotionState is the state of a promotion.
type PromotionState string

// The states of a promotion.
const (
	PromotionRunning   PromotionState = "RUNNING"
	PromotionPaused    PromotionState = "PAUSED"    // nothing is begun until a person resumes it
	PromotionCancelled PromotionState = "CANCELLED" // final; nothing is sent any more
)

// Outcome is how one call of the Money API ended.
type Outcome string

// The outcomes of a call.
const (
	// Paid: charged; Result.TransactionKey says under which key.
	Paid Outcome = "paid"
	// NotSent: no byte left the process, so nothing was charged and the idempotency key was not used. The call is released:
	// it does not count as an attempt.
	NotSent Outcome = "not_sent"
	// NotCharged: the API's own words say that nothing was charged and that it refuses to work for now. The call is
	// released: 429 or 503 with Retry-After.
	NotCharged Outcome = "not_charged"
	// TryAgain: the API's own words say that nothing was charged. The attempt counts: 408, 425, a refusal that may pass.
	TryAgain Outcome = "try_again"
	// PerhapsCharged: the request was written and no trustworthy answer came back.
	PerhapsCharged Outcome = "perhaps_charged"
	// Unrecognized: perhaps charged, as an answer came back that may be a proxy's. The call is released.
	Unrecognized Outcome = "unrecognized"
	// Rejected: the API refused for good (400, 422). A lookup that is Rejected counts and says nothing about the charge.
	Rejected Outcome = "rejected"
	// OwnFault: the API's own words say that our credentials or our address are wrong (401, 403, 404). The call is released.
	OwnFault Outcome = "own_fault"
	// NoCharge: a lookup's answer that the API knows no charge for the key. It proves nothing.
	NoCharge Outcome = "no_charge"
	// Interrupted: the call was never started, because of a shutdown or because too little of the lease
	// was left. The call is released and the payout is due again at once.
	Interrupted Outcome = "interrupted"
)

func (o Outcome) valid() bool {
	switch o {
	case Paid, NotSent, NotCharged, TryAgain, PerhapsCharged, Unrecognized, Rejected, OwnFault, NoCharge, Interrupted:
		return true
	}
	return false
}

// released reports whether the call does not count as an attempt or lookup.
func (o Outcome) released() bool {
	switch o {
	case NotSent, NotCharged, Unrecognized, OwnFault, Interrupted:
		return true
	}
	return false
}

// CallKind says what an attempt line is about.
type CallKind string

// The kinds of calls.
const (
	CallSend CallKind = "send" // a charge was requested
	CallAsk  CallKind = "ask"  // the status of a charge was asked for
)

// Row is the part of a payout that changes over its life. A zero time means none.
type Row struct {
	ID int64 // surrogate; batched updates go by it
	Key
	SummaryID int64
	State     State

	Hint    Hint
	HintDue time.Time // stream: since when; retry: when the retry record or the lease is due; none: since when
	Version int64     // counts the changes of the row

	Epoch         int64 // counts the begins; fences every later write
	Attempts      int   // sends begun and not released
	Asks          int   // lookups begun and not released
	Released      int   // released calls that count, since the payout was accepted or replayed (Result.Counted)
	Failures      int   // calls that ended in any way but paid; drives the back-off
	Interruptions int   // leases that ran out, and calls that were never started

	LeaseUntil    time.Time // set while SENDING
	NextAttemptAt time.Time // not to be begun before
	FirstSentAt   time.Time // when the oldest request that may have charged was begun
	// KeyFirstUsedAt is when the idempotency key may have reached the API first. Only a call of which no byte left the process
	// clears it again, and only if that call set it.
	KeyFirstUsedAt time.Time
	MaybeCharged   bool // an earlier attempt may have charged
	Asking         bool // SENDING: the call is a lookup. AMBIGUOUS, ERROR: the next call must be one
	NoChargeSeen   bool // the API has said that it knows no charge, and no request was sent since (SENDING: before this call)

	TransactionKey   string
	LastClass        string
	LastError        string
	AttemptStartedAt time.Time
	AttemptBy        string // instance of the last begin
	AcceptedAt       time.Time
	SettledAt        time.Time
}

// leased reports whether a worker may be calling right now.
func (r Row) leased(now time.Time) bool { return r.State == Sending && r.LeaseUntil.After(now) }

// Attempt is one call of the Money API, written when it is over.
type Attempt struct {
	Epoch     int64     `json:"epoch"`
	Late      bool      `json:"late,omitempty"` // the answer came after somebody else had taken over; it changed nothing
	Number    int       `json:"number"`         // of the send; an ask repeats the number of the last send; 0 for a late answer
	Kind      CallKind  `json:"kind"`
	Instance  string    `json:"instance"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at"`
	Outcome   Outcome   `json:"outcome"`
	Class     string    `json:"class,omitempty"`
	Answer    string    `json:"answer,omitempty"`
	Status    int       `json:"status,omitempty"` // HTTP status; 0 without one
}

// Record is a message as it came, with what dead letters and the feeder need of it.
type Record struct {
	Key
	SummaryID int64
	// Payload is the message as it came; the feeder enqueues it again, dead letters carry it.
	Payload []byte
	// Request is the exact request that every attempt sends. Empty: the payload itself.
	Request []byte
	// Headers are the message's own headers, without those of transports. May be nil.
	Headers map[string]string
	// RecordKey is the record's or entry's key. May be nil.
	RecordKey []byte
	// Origin says where the message came from (pipeline.Origin.String).
	Origin string
	// Handler is the route's name, for dead letters.
	Handler string
}

func (r *Record) validate() error {
	if err := r.Key.validate(); err != nil {
		return err
	}
	if len(r.Payload) == 0 {
		return invalid("payout %s: the payload is empty", r.Key)
	}
	if len(r.Payload) > MaxPayloadBytes || len(r.Request) > MaxPayloadBytes {
		return invalid("payout %s: the payload is larger than %d bytes", r.Key, MaxPayloadBytes)
	}
	if len(r.RecordKey) > maxRecordKeyBytes {
		return invalid("payout %s: the record key is larger than %d bytes", r.Key, maxRecordKeyBytes)
	}
	return nil
}

// request returns the bytes that are sent.
func (r *Record) request() []byte {
	if len(r.Request) > 0 {
		return r.Request
	}
	return r.Payload
}

// Limits of what a row stores.
const (
	MaxPayloadBytes   = 64 << 10
	maxRecordKeyBytes = 64 << 10
	maxTextBytes      = 4 << 10 // answers and errors are cut to this
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("ledger: %w: "+format, append([]any{ErrInvalid}, args...)...)
}
