package ledger

import "github.com/millrace-io/millrace/handlers/promotion/ledger/rules"

// Callers use the types of the package rules by these names.
type (
	// Type is the type of a promotion, such as POINT.
	Type = rules.Type
	// Promotion identifies a campaign.
	Promotion = rules.Promotion
	// Key identifies a payout: one target of one promotion.
	Key = rules.Key
	// State is the state of a payout.
	State = rules.State
	// QueueLocation is where the next delivery of a payout is expected.
	QueueLocation = rules.QueueLocation
	// PromotionState is the state of a promotion.
	PromotionState = rules.PromotionState
	// Row is the part of a payout that changes.
	Row = rules.Row
	// Record is a message with everything that dead letters and the feeder need of it.
	Record = rules.Record
	// Next is the next action of the caller of Accept, Begin or Settle.
	Next = rules.Next
	// Outcome is the end of one call of the Money API.
	Outcome = rules.Outcome
	// CallKind is the kind of a call.
	CallKind = rules.CallKind
	// CallResult is the end of a call.
	CallResult = rules.CallResult
	// Attempt is one call of the Money API.
	Attempt = rules.Attempt
	// Resolution is an operator's statement about a payout that may have been charged.
	Resolution = rules.Resolution
)

// The states of a payout.
const (
	Pending   = rules.Pending
	Sending   = rules.Sending
	Errored   = rules.Errored
	Ambiguous = rules.Ambiguous
	Success   = rules.Success
	Failed    = rules.Failed
	Unknown   = rules.Unknown
	Cancelled = rules.Cancelled
)

// The queue locations of a payout.
const (
	QueueNone   = rules.QueueNone
	QueueStream = rules.QueueStream
	QueueRetry  = rules.QueueRetry
)

// The states of a promotion.
const (
	PromotionRunning   = rules.PromotionRunning
	PromotionPaused    = rules.PromotionPaused
	PromotionCancelled = rules.PromotionCancelled
)

// The next actions of a caller of Accept, Begin or Settle.
const (
	Enqueue     = rules.Enqueue
	Pay         = rules.Pay
	Done        = rules.Done
	Paused      = rules.Paused
	Conflict    = rules.Conflict
	Send        = rules.Send
	Lookup      = rules.Lookup
	Ack         = rules.Ack
	Retry       = rules.Retry
	Unannounced = rules.Unannounced
)

// The outcomes of a call.
const (
	Paid           = rules.Paid
	NotSent        = rules.NotSent
	NotCharged     = rules.NotCharged
	TryAgain       = rules.TryAgain
	PerhapsCharged = rules.PerhapsCharged
	Unrecognized   = rules.Unrecognized
	Rejected       = rules.Rejected
	Misconfigured  = rules.Misconfigured
	NoCharge       = rules.NoCharge
	Interrupted    = rules.Interrupted
)

// The kinds of calls.
const (
	CallSend   = rules.CallSend
	CallLookup = rules.CallLookup
)

// Classes of dead letters and attempts.
const (
	ClassConflict     = rules.ClassConflict
	ClassFailed       = rules.ClassFailed
	ClassUnknown      = rules.ClassUnknown
	ClassUnannounced  = rules.ClassUnannounced
	ClassLeaseExpired = rules.ClassLeaseExpired
	ClassResolved     = rules.ClassResolved
)

// MaxPayloadBytes bounds the payload and the request of a record.
const MaxPayloadBytes = rules.MaxPayloadBytes
