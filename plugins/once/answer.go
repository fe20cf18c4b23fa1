package once

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Repeat says what the far side does with a second request for the same effect. The promise of a kind
// depends on it, so it has no default: the zero value is not valid.
type Repeat = rules.Repeat

// The cases of Repeat.
const (
	// ByKey: the far side knows the idempotency key of a request for some time, and executes it once. An
	// unclear effect is sent again with the same key and the same bytes while the key is young.
	ByKey = rules.ByKey
	// ByLookup: it has no keys, but an effect can be found. An unclear effect is sent again only after a
	// lookup found nothing at a time when no earlier request can be under way any more.
	ByLookup = rules.ByLookup
	// Never: it has neither. An unclear effect is not sent again, and an operator decides: at most once.
	Never = rules.Never
	// Always: it has neither. An unclear effect is sent again: at least once.
	Always = rules.Always
)

// Attempt is one request for an effect at the far side.
type Attempt[T any] struct {
	Kind        string // name of the kind, for metrics and traces
	Repeat      Repeat // of the kind; the zero value, too, says that nothing may be sent twice by itself
	Key         Key
	Idempotency string // the same on every attempt
	Value       T
	Request     []byte            // the same bytes on every attempt; must not be changed
	Number      int               // of the send, from 1
	Headers     map[string]string // of the record
}

// Lookup is a question about an effect. It has no value, so it can be asked when the value can't be decoded
// any more.
type Lookup struct {
	Key         Key
	Idempotency string
	Request     []byte    // what every attempt sends; must not be changed
	LastSent    time.Time // start of the last attempt; zero if the ledger knows of none
}

// Class is what an answer proves about one attempt or lookup.
type Class uint8

// The classes of an Answer.
const (
	// Unclear: perhaps done. The request was sent, and no reliable answer followed. It is also the zero value.
	Unclear Class = iota
	// Done: done, by this request or by an earlier one with the same key.
	Done
	// NotSent: no byte of this attempt left the process, so it did nothing.
	NotSent
	// Throttled: the far side itself refuses to work for now, and did nothing. Wait, and do not count the
	// attempt.
	Throttled
	// Rejected: the far side itself refuses this effect for good. A lookup that is Rejected proves nothing
	// about the effect.
	Rejected
	// Misconfigured: the far side itself refuses our credential, permission or address, and did nothing. Do
	// not count the attempt, because an operator must act.
	Misconfigured
	// Retry: the far side itself did nothing and asks for the same request again.
	Retry
	// Unrecognized: an answer that is perhaps not the far side's own. A proxy may have made it after it
	// passed the request on, so the effect is perhaps done. Do not count the attempt.
	Unrecognized
	// NotDone: only from a lookup: the far side knows nothing of the effect yet. It proves nothing about
	// later, because a request may be under way.
	NotDone

	classes // the number of classes
)

// Classes returns all classes, in the order of their numbers.
func Classes() []Class {
	all := make([]Class, classes)
	for i := range all {
		all[i] = Class(i)
	}
	return all
}

// String returns the class in snake case. Metrics and dead letters contain it.
func (c Class) String() string {
	if c >= classes {
		return fmt.Sprintf("Class(%d)", int(c))
	}
	return [classes]string{
		Unclear: "unclear", Done: "done", NotSent: "not_sent", Throttled: "throttled", Rejected: "rejected",
		Misconfigured: "misconfigured", Retry: "retry", Unrecognized: "unrecognized", NotDone: "not_done",
	}[c]
}

// MaxReceipt is the longest Answer.Receipt in bytes.
const MaxReceipt = 255

// Answer is the result of one attempt or lookup. It is a value instead of an error, because an error can't
// say "perhaps done". The zero Answer is Unclear, the class that can neither lose nor double an effect.
type Answer struct {
	Class      Class
	Receipt    string        // the far side's name of the effect; only with Done; at most MaxReceipt bytes
	RetryAfter time.Duration // no attempt of this effect sooner, and with General none of any; 0 without one
	Status     int           // HTTP status; 0 when there was no answer
	Code       string        // the far side's own code of an error, or empty
	Text       string        // for people: bounded, printable, without secrets
	Err        error         // the failure, if there was no readable answer; may be nil
	// General: other effects have this trouble, too, so it must not end one of them. An example is a
	// credential that was refused.
	General bool
}

// IsDone returns the answer of a far side that has done the effect. receipt is its name of the effect, and
// may be empty.
func IsDone(receipt string) Answer { return Answer{Class: Done, Receipt: receipt} }

// IsRejected returns the answer of a far side that refuses the effect for good, with its code and its words.
func IsRejected(code, text string) Answer { return Answer{Class: Rejected, Code: code, Text: text} }
