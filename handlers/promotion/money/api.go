package money

import (
	"context"
	"time"
)

// API is what the promotion plugin needs of a service that pays. Client implements it for the
// OpenAPI contract; a team with another API writes its own. All methods are safe for concurrent
// use and return when ctx ends at the latest. Charge and Lookup never start a request after ctx's
// deadline, and never retry by themselves.
type API interface {
	// Slot waits for the right to make one call and returns the function that ends this right. The processor takes a slot
	// before it begins a payout: the call then never waits while the lease runs. release must be called exactly once, after
	// the call or without one. An error means that there is no slot: ctx ended, or the process stops.
	Slot(ctx context.Context) (release func(), err error)
	// Charge asks for one charge. The Answer's class says it all; there is no other error.
	Charge(ctx context.Context, ch Charge) Answer
	// Lookup asks what became of the charge with this idempotency key.
	Lookup(ctx context.Context, key string) Answer
}

// Operation is a charging operation of the API. The promotion types define them.
type Operation struct {
	Name string // operationId of the OpenAPI file; labels metrics and spans
	Path string // under the API's URL
}

// lookupPath is getCharge without its key.
const lookupPath = "/v1/charges/"

// Charge is one request for money.
type Charge struct {
	Operation Operation
	Key       string // idempotency key: <TYPE>:<promotionId>:<targetId>, the same on every attempt
	Body      []byte // JSON, the same bytes on every attempt; nobody may modify them afterwards
}

// Answer is what one call has shown. The zero Answer is Ambiguous, the class that can't lose money.
type Answer struct {
	Class          Class
	TransactionKey string        // of the charge; only with Paid
	RetryAfter     time.Duration // not sooner than this: with Throttled, Retry and Unrecognized, if the answer asks for it, and with NotSent while all calls wait
	Status         int           // HTTP status; 0 when there was no answer
	Code           string        // the API's own code of an error, or empty
	Text           string        // for people: bounded, printable, without secrets
	Err            error         // what broke, if it was not the API's answer; may be nil
	// General: the trouble is not this payout's alone. The credential was refused, the breaker is not closed, or throttling
	// held all calls a moment ago.
	General bool
}

// Class is what is known about the money after one call.
type Class uint8

// The classes of an Answer.
const (
	// Ambiguous: perhaps charged. Written and then a timeout, a reset, an unreadable 2xx, a 5xx with the
	// API's own code, or 409 (in flight). Send again with the same key, or look it up; never use a new key.
	Ambiguous Class = iota
	// Paid: charged, by this request or by an earlier one with the same key.
	Paid
	// NotSent: certainly not charged by this attempt, since no byte of it left the process: the
	// deadline had passed, dial, DNS or TLS failed, the breaker was open, or a Retry-After held.
	NotSent
	// Throttled: the API's own code says that it refuses to work for now (429, or 503 with Retry-After). Certainly not
	// charged by this attempt. Wait, spend no attempt.
	Throttled
	// Rejected: refused for good with the API's own code: 400, 422, other 4xx, and 403 or 404 with a code that the contract
	// lists as about the payout. A lookup that is Rejected says nothing about the charge.
	Rejected
	// OwnFault: the API's own code says that we are not set up right (401, 403, 404). Certainly not charged by this
	// attempt. Spend no attempt; a person must act.
	OwnFault
	// Retry: the API's own code asks for the same request again (408, 425). Certainly not charged by this attempt.
	Retry
	// Unrecognized: an answer without the API's own code, which a proxy may have made after it passed the request on.
	// Perhaps charged; spend no attempt.
	Unrecognized
	// NoCharge: only from Lookup: nothing with this key has been executed so far. No proof that
	// nothing will be, since a request may be under way.
	NoCharge

	classes // how many there are
)

// String returns the class in snake case, as metrics and logs show it.
func (c Class) String() string {
	switch c {
	case Paid:
		return "paid"
	case NotSent:
		return "not_sent"
	case Throttled:
		return "throttled"
	case Rejected:
		return "rejected"
	case OwnFault:
		return "own_fault"
	case Retry:
		return "retry"
	case Unrecognized:
		return "unrecognized"
	case NoCharge:
		return "no_charge"
	default:
		return "ambiguous"
	}
}
