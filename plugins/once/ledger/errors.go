package ledger

import (
	"errors"
	"fmt"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

var (
	// ErrUnavailable means that the database can't be reached, is going down, takes no writes, or
	// has a lock that another transaction does not release. The outcome of the call is unknown.
	// Every call may be repeated later.
	ErrUnavailable = fmt.Errorf("once: ledger: database: %w", pipeline.ErrUnavailable)

	// ErrInvalid means that a record or a request can't be stored. A repetition is useless.
	ErrInvalid = rules.ErrInvalid

	// ErrRefusedByDatabase means that the database is there and refuses a statement because of its
	// own state: a missing right or table. Nothing is stored, and the call may be repeated after an
	// operator has repaired it; the text says how.
	ErrRefusedByDatabase = errors.New("the database refuses the statement")

	// ErrOtherLedger means that the transaction of AcceptTx belongs to another database or schema
	// than the ledger. Nothing was written.
	ErrOtherLedger = errors.New("the transaction belongs to another ledger")

	// ErrConflict means that another request with the same key was accepted before. AcceptTx returns
	// it, and the caller must roll its transaction back.
	ErrConflict = errors.New("another request with the same key was accepted before")

	// ErrNotFound means that there is no such kind, group or effect.
	ErrNotFound = errors.New("not found")

	// ErrNotSelected means that an effect of a selection has changed since it was selected. Leave it out.
	ErrNotSelected = errors.New("it has changed since it was selected")

	// ErrCancelled means that the group is cancelled, which is final.
	ErrCancelled = errors.New("the group is cancelled")

	// ErrFinished means that all effects of the group that were expected are done or cancelled, so nothing is left to pause or
	// cancel. Option Future does it for those that are still to come.
	ErrFinished = errors.New("all effects that were expected are done or cancelled")

	// ErrClosed means that the ledger was closed. The outcome of a call under way is unknown.
	ErrClosed = errors.New("once: ledger: closed")
)

// RefusedError means that the state of an effect does not allow an operator's action. Nothing has
// changed.
type RefusedError struct {
	Key     Key
	Action  string // replay or resolve
	Refusal rules.Refusal
	// Late: a late answer states that the effect was done, and Resolution denies it without Force.
	// Refusal is zero then.
	Late    bool
	Receipt string // of the late answer
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("once: ledger: %s of %s: refused: ", e.Action, e.Key.text())
	if e.Late {
		return text + fmt.Sprintf("a late answer says that it was done, receipt %q; force denies that all the same", e.Receipt)
	}
	return text + refusalText(e.Refusal)
}

func refusalText(r rules.Refusal) string {
	switch r {
	case rules.RefusedDone:
		return "it is done"
	case rules.RefusedCancelled:
		return "it was cancelled together with its group"
	case rules.RefusedUnsettled:
		return "it is still being worked on"
	case rules.RefusedGroupCancelled:
		return "its group is cancelled, so nothing is sent"
	case rules.RefusedNoCall:
		return "it may have happened, and no call can find that out; resolve it"
	case rules.RefusedNotUnknown:
		return "it is not UNKNOWN"
	case rules.RefusedChanged:
		return "it has changed since it was read"
	case rules.RefusedLookup:
		return "it is AMBIGUOUS and will be looked up; only force ends that"
	}
	return fmt.Sprintf("refusal %d", r)
}

// openError separates an unavailable database, which may be waited for, from other errors.
func openError(where string, err error) error {
	if sqldb.Unreachable(err) || sqldb.Contended(err) {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, where, err)
	}
	return fmt.Errorf("once: ledger: %s: %w", where, sqldb.Explain(err))
}

const (
	maxTextBytes    = 4 << 10 // of answers and errors
	maxReceiptBytes = 255
)

// clean makes text storable, with a bounded length.
func clean(s string) string { return portable.Text(s, maxTextBytes) }
