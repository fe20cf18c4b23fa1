package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// store is the interface to a database. Accept, begin and settle are written above it, over
// transactions. Everything rare is portable SQL over a querier.
type store interface {
	// begin starts a transaction, reads the request in one round trip, and then reads the clock.
	begin(ctx context.Context, w readRequest) (transaction, *readResult, error)
	// read runs fn outside of a transaction.
	read(ctx context.Context, fn func(q querier, now time.Time) error) error
	// update runs fn in a transaction. With exclusive set, no begin or accept of that promotion
	// runs at the same time.
	update(ctx context.Context, exclusive *payouts.Promotion, fn func(q querier, now time.Time) error) error
	// markEnqueued sets the queue location of the rows that still have the version of their item.
	markEnqueued(ctx context.Context, p payouts.Promotion, incarnation string, rows []FeedItem) (int, error)

	migrate(ctx context.Context) error
	// fault classifies an error.
	fault(err error) fault
	// flushers is the number of concurrent transactions per batcher.
	flushers() int
	// pools returns the state of the connections, without a statement.
	pools() []portable.Pool
	measureTables(ctx context.Context, to *portable.Metrics) error
	close() error
}

// readRequest names what a transaction reads, sorted and unique. The locks of the promotions are
// taken first, in shared mode.
type readRequest struct {
	promotions []payouts.Promotion
	keys       []payouts.Key
	knownOnly  bool // insert no rows of promotions; an empty state counts as running
	messages   bool // also read the stored messages
	lock       bool // lock the rows; otherwise a concurrent change fails the commit (faultStale)
}

type readResult struct {
	now        time.Time
	promotions map[payouts.Promotion]rules.GroupState
	rows       map[payouts.Key]*storedRow
}

// storedRow is a row with its message, which is empty unless it was requested.
type storedRow struct {
	payouts.Row
	storedMessage
	before payouts.Row // as read, to detect a change
}

// storedMessage is the part of a payout that never changes.
type storedMessage struct {
	payload   []byte
	request   []byte // nil: the payload
	headers   string // JSON, or empty
	recordKey []byte
	origin    string
}

func (b storedMessage) requestToSend() []byte {
	if b.request != nil {
		return b.request
	}
	return b.payload
}

// transaction is a running transaction. Exactly one of commit and rollback ends it; rollback after
// commit has no effect.
type transaction interface {
	// addPromotions inserts missing rows of promotions, in the state running.
	addPromotions(ctx context.Context, ps []payouts.Promotion, now time.Time) error
	// readMore adds to s.
	readMore(ctx context.Context, w readRequest, read *readResult) error
	// insert inserts rows, sorted by key, and sets the ids of those that did not exist.
	insert(ctx context.Context, rows []*storedRow) error
	// failedMessages reads the messages of rows and the time of their first failure.
	failedMessages(ctx context.Context, ids []int64) (map[int64]failedMessage, error)
	// querier runs portable SQL in the transaction, for rare cases.
	querier() querier
	// commit writes everything and commits.
	commit(ctx context.Context, writes *writeSet) error
	rollback()
}

type failedMessage struct {
	storedMessage
	firstFailedAt time.Time // zero: never before
}

// writeSet is what a transaction writes.
type writeSet struct {
	inserts   []*storedRow // sorted by key; ids are set, or stay 0 when the row exists
	rows      []*storedRow
	attempts  []*attemptRow
	outbox    []*outboxRow
	summaries []*summaryDelta // sorted
}

type attemptRow struct {
	payoutID  int64
	promotion int64
	payouts.Attempt
}

// outboxRow is a dead letter or an outcome event to publish.
type outboxRow struct {
	kind          OutboxKind
	key           payouts.Key
	class         string
	err           string
	payload       []byte
	headers       string
	recordKey     []byte
	origin        string
	handler       string
	attempts      int
	firstFailedAt time.Time
	createdAt     time.Time
	dedupe        *string // nil, or unique: a repeated row is dropped
}

type summaryID struct {
	payouts.Promotion
	summary int64
}

type summaryDelta struct {
	summaryID
	paid, failed, unknown, cancelled int64
}

// querier runs portable SQL: $n placeholders, time.Time arguments, portable.Time destinations.
type querier interface {
	exec(ctx context.Context, sql string, args ...any) (affected int64, err error)
	// query calls row for each row.
	query(ctx context.Context, row func(scanner) error, sql string, args ...any) error
	// forUpdate is the locking clause of a SELECT, with a leading space. Empty where transactions
	// are exclusive.
	forUpdate(skipLocked bool) string
	// anyOf is the condition for a column that must be one of ids, and the argument of its
	// placeholder.
	anyOf(placeholder string, ids []int64) (condition string, arg any)
}

type scanner interface{ Scan(dest ...any) error }

// fault is the class of a database error.
type fault int

const (
	faultNone   fault = iota
	faultRetry        // deadlock or serialization failure: nothing happened, run it again
	faultLocked       // a lock was not free in time: nothing happened, run the rest without it
	faultStale        // a row changed since the read: nothing happened, run it again with locks
	faultData         // this record can never be stored
	faultServer       // the database is unreachable or going down; the outcome may be unknown
	faultOther        // mostly a refusal by the state of the database: nothing happened, an operator must repair it
)
