package ledger

import (
	"errors"
	"fmt"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

var (
	// ErrUnavailable means that the database could not be reached, is going down, takes no writes, or has
	// a lock that another transaction does not release. The outcome of the call is unknown; every call may be repeated later.
	ErrUnavailable = fmt.Errorf("ledger: database: %w", pipeline.ErrUnavailable)

	// ErrInvalid means that the record itself can't be stored. Repeating is pointless: dead-letter it.
	ErrInvalid = errors.New("invalid record")

	// ErrNotFound means that there is no such payout or promotion.
	ErrNotFound = errors.New("not found")

	// ErrCancelled means that the promotion is cancelled, which is final.
	ErrCancelled = errors.New("promotion is cancelled")

	// ErrRefused means that the payout is not in a state in which a person may do that; the text says why.
	ErrRefused = errors.New("refused")

	// ErrClosed means that the ledger was closed. The outcome of a call under way is unknown.
	ErrClosed = errors.New("ledger: closed")
)

// Classes of dead letters that the ledger writes. A payout that failed carries the class of its last
// result, when that has one, instead of ClassFailed.
const (
	ClassConflict = "conflict" // another request for the same payout came first
	ClassFailed   = "failed"   // certainly not charged, and given up
	ClassUnknown  = "unknown"  // perhaps charged, and given up: for a person

	// ClassUnannounced is the class of an entry or retry record without a row: no accepted record announced the payout.
	ClassUnannounced = "unannounced"

	// ClassLeaseExpired is the class of an attempt whose worker was not heard of before its lease ran out.
	ClassLeaseExpired = "lease_expired"
)

// notOpened tells a database that is away, and may be waited for, from one that a person must look at.
func notOpened(where string, err error) error {
	if sqldb.Unreachable(err) || sqldb.Contended(err) {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, where, err)
	}
	return fmt.Errorf("ledger: %s: %w", where, err)
}
