package money

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/plugins/once"
)

// API is a service that pays. Client implements it for openapi.yaml; a team with another API
// writes its own. All methods are safe for concurrent use, and return when ctx ends at the latest.
// Charge and Lookup never start a request after ctx's deadline, and never retry.
type API interface {
	// Slot waits for the right to make one call and returns the function that ends this right.
	// release must be called exactly once. An error means that ctx ended, or that the process
	// stops.
	Slot(ctx context.Context) (release func(), err error)
	// Charge requests one charge. The only error is the class of the Answer.
	Charge(ctx context.Context, ch Charge) Answer
	// Lookup returns the outcome of the charge with this idempotency key.
	Lookup(ctx context.Context, key string) Answer
}

// Operation is a charging operation of the API. The promotion types define them.
type Operation struct {
	Name string // operationId of the OpenAPI file; labels metrics and spans
	Path string // under the API's URL
}

// Charge is one request for money.
type Charge struct {
	Operation Operation
	Key       string // idempotency key: <TYPE>:<promotionId>:<targetId>, the same on every attempt
	Body      []byte // JSON, the same bytes on every attempt; must not be modified afterwards
}

// Answer is the result of one call. The zero Answer is Ambiguous, the class that can't lose money.
type Answer struct {
	Class          Class
	TransactionKey string        // of the charge; only with Paid
	RetryAfter     time.Duration // minimum wait, or 0
	Status         int           // HTTP status; 0 when there was no answer
	Code           string        // the API's own code of an error, or empty
	Text           string        // for people: bounded, printable, without secrets
	Err            error         // the failure, if there was no readable answer; may be nil
	// General: other payouts have this problem too. The credential was refused, the breaker is not
	// closed, or all calls were throttled within the breaker's window.
	General bool
}

// Class states whether one call charged. Its values are those of once.Class, in the words of the Money API.
type Class once.Class

// The classes of an Answer.
const (
	// Ambiguous: perhaps charged. The request was sent, and then a timeout, a reset, an unreadable
	// 2xx, a 409, or a 5xx with the API's own code followed. Send it again with the same key, or
	// look it up. Never use a new key.
	Ambiguous = Class(once.Unclear)
	// Paid: charged, by this request or by an earlier one with the same key.
	Paid = Class(once.Done)
	// NotSent: not charged by this attempt, because no byte of it was sent. The deadline had
	// passed, the connection failed, the breaker was open, or all calls were throttled.
	NotSent = Class(once.NotSent)
	// Throttled: the API's own code refuses to work for now (429, or 503 with Retry-After). Not
	// charged by this attempt. Wait, and do not count the attempt.
	Throttled = Class(once.Throttled)
	// Rejected: refused permanently with the API's own code. A 403 or 404 has this class only with
	// one of x-payout-codes in openapi.yaml. A lookup that is Rejected proves nothing about the
	// charge.
	Rejected = Class(once.Rejected)
	// Misconfigured: the API's own code refuses our credential, permission or address (401, 403,
	// 404). Not charged by this attempt. Do not count it; an operator must act.
	Misconfigured = Class(once.Misconfigured)
	// Retry: the API's own code requests the same request again (408, 425). Not charged by this
	// attempt.
	Retry = Class(once.Retry)
	// Unrecognized: an answer without the API's own code. A proxy may have made it after it passed
	// the request on. Perhaps charged; do not count the attempt.
	Unrecognized = Class(once.Unrecognized)
	// NoCharge: only from Lookup: no charge with this key exists yet. It proves nothing about
	// later, because a request may be in flight.
	NoCharge = Class(once.NotDone)
)

// String returns the class in snake case. Dead letters and the ledger contain it.
func (c Class) String() string {
	switch c {
	case Ambiguous:
		return "ambiguous"
	case Paid:
		return "paid"
	case Misconfigured:
		return "own_fault"
	case NoCharge:
		return "no_charge"
	}
	return once.Class(c).String()
}
