package rules

import (
	"errors"
	"fmt"
)

// ErrInvalid means that a record or a request can't be stored. A retry is useless: the record
// becomes a dead letter.
var ErrInvalid = errors.New("invalid record")

// Invalid returns an error that wraps ErrInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("ledger: %w: "+format, append([]any{ErrInvalid}, args...)...)
}

// Classes of the dead letters that the ledger writes. A failed effect has the class of its last
// result, when that has one, instead of ClassFailed.
const (
	ClassConflict = "conflict" // another request for the same effect was accepted first
	ClassFailed   = "failed"   // certainly not done, and nothing is tried any more
	ClassUnknown  = "unknown"  // perhaps done, and nothing is tried any more: for an operator

	// ClassUnannounced is the class of an entry or retry record without a row. Either no
	// accepted record announced the effect, or the ledger has lost it.
	ClassUnannounced = "unannounced"

	// ClassLeaseExpired is the class of an attempt whose lease expired without an answer.
	ClassLeaseExpired = "lease_expired"

	// ClassResolved is the class of an effect that an operator has declared not done.
	ClassResolved = "resolved_not_done"
)
