package ledger

import (
	"errors"
	"fmt"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

var (
	// ErrUnavailable means that the database can't be reached, is going down, takes no writes, or
	// has a lock that another transaction does not release. The outcome of the call is unknown.
	// Every call may be repeated later.
	ErrUnavailable = fmt.Errorf("ledger: database: %w", pipeline.ErrUnavailable)

	// ErrRefusedByDatabase means that the database is there and refuses a statement because of its
	// own state: a sequence behind its table, a missing partition, a missing right. Nothing is
	// stored, and every call may be repeated. For Accept, NotEnqueued, Begin and Settle the log has
	// an error for the operator, with the reason and the repair.
	ErrRefusedByDatabase = errors.New("the database refuses the statement")

	// ErrNotFound means that there is no such payout or promotion.
	ErrNotFound = errors.New("not found")

	// ErrCancelled means that the promotion is cancelled, which is final.
	ErrCancelled = errors.New("promotion is cancelled")

	// ErrFinished means that every payout that the started event of the promotion announced is paid or
	// cancelled, so there is nothing to pause or cancel.
	ErrFinished = errors.New("every announced payout is paid or cancelled")

	// ErrRefused means that the state of the payout does not allow an operator's action. The text
	// has the reason.
	ErrRefused = errors.New("refused")

	// ErrClosed means that the ledger was closed. The outcome of a call under way is unknown.
	ErrClosed = errors.New("ledger: closed")
)

// openError separates an unavailable database, which may be waited for, from other errors.
func openError(where string, err error) error {
	if sqldb.Unreachable(err) || sqldb.Contended(err) {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, where, err)
	}
	return fmt.Errorf("ledger: %s: %w", where, sqldb.Explain(err))
}

func notFound(k payouts.Key) error { return fmt.Errorf("ledger: payout %s: %w", k, ErrNotFound) }

const maxTextBytes = 4 << 10 // of answers and errors

// clean makes text storable, with a bounded length.
func clean(s string) string { return portable.Text(s, maxTextBytes) }
