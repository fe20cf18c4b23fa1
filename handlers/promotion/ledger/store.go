package ledger

import (
	"context"
	"time"
)

// store is the seam to a database. The hot operations are written once above it, over units; everything
// rare is portable SQL over a querier.
type store interface {
	// begin starts a transaction, reads what is wanted in one round trip, and reads the clock after it.
	begin(ctx context.Context, w want) (unit, *snapshot, error)
	// read runs fn outside of a transaction.
	read(ctx context.Context, fn func(q querier, now time.Time) error) error
	// update runs fn in a transaction. With a gate, nobody begins or accepts a payout of that promotion
	// meanwhile.
	update(ctx context.Context, gate *Promotion, fn func(q querier, now time.Time) error) error
	// markFed sets the hint of the rows that are as they were when they were fed.
	markFed(ctx context.Context, p Promotion, incarnation string, rows []Feed) (int, error)

	migrate(ctx context.Context) error
	// fault says what an error means.
	fault(err error) fault
	// flushers is how many transactions of a kind may be under way at once.
	flushers() int
	close() error
}

// want is what a unit reads, sorted and unique. The gates of promotions are passed before.
type want struct {
	promotions []Promotion
	keys       []Key
	knownOnly  bool // promotions without a row get none; their state is then empty, which counts as running
	bodies     bool // read the stored messages too
	lock       bool // lock the rows; without it the commit fails with faultStale when a row has changed meanwhile
}

// snapshot is what a unit has read.
type snapshot struct {
	now        time.Time
	promotions map[Promotion]PromotionState
	rows       map[Key]*stored
}

// stored is a row with its message. Body is empty unless it was wanted.
type stored struct {
	Row
	body
	was Row // as it was read, to tell whether it changed
}

// body is the part of a payout that never changes.
type body struct {
	payload   []byte
	request   []byte // nil: the payload
	headers   string // JSON, or empty
	recordKey []byte
	origin    string
}

func (b body) sent() []byte {
	if b.request != nil {
		return b.request
	}
	return b.payload
}

// unit is a transaction under way. Exactly one of commit and rollback ends it; rollback after commit
// does nothing.
type unit interface {
	// addPromotions makes rows for promotions that have none, running.
	addPromotions(ctx context.Context, ps []Promotion, now time.Time) error
	// more reads more, into s.
	more(ctx context.Context, w want, s *snapshot) error
	// insert makes rows, sorted by key, and sets the ids of those that did not exist.
	insert(ctx context.Context, rows []*stored) error
	// deadBodies reads the messages of rows and when each failed first.
	deadBodies(ctx context.Context, ids []int64) (map[int64]deadBody, error)
	// querier runs portable SQL within the transaction, for what is rare.
	querier() querier
	// commit writes everything and commits.
	commit(ctx context.Context, c *changes) error
	rollback()
}

type deadBody struct {
	body
	firstFailedAt time.Time // zero: never before
}

// changes is what a unit writes.
type changes struct {
	inserts   []*stored // rows to make, sorted by key; their ids are set, or stay 0 when the row exists
	rows      []*Row
	attempts  []attemptLine
	outbox    []outboxLine
	summaries []summaryDelta // sorted
}

type attemptLine struct {
	payoutID int64
	Attempt
}

// outboxLine is a dead letter or an outcome event to publish.
type outboxLine struct {
	kind          OutboxKind
	key           Key
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
	dedupe        string // empty, or unique: a repeated line is dropped
}

type summaryID struct {
	Promotion
	summary int64
}

type summaryDelta struct {
	summaryID
	paid, failed, unknown, cancelled int64
}

// querier runs portable SQL: $n placeholders, time.Time arguments, sqldb.Time destinations.
type querier interface {
	exec(ctx context.Context, sql string, args ...any) (affected int64, err error)
	// query calls row for every row.
	query(ctx context.Context, row func(scanner) error, sql string, args ...any) error
	// forUpdate is the locking clause of a SELECT, with a leading space; empty where a transaction
	// is exclusive anyway.
	forUpdate(skipLocked bool) string
	// anyOf is the condition that follows a column which must be one of ids, and the argument of its placeholder.
	anyOf(placeholder string, ids []int64) (condition string, arg any)
}

type scanner interface{ Scan(dest ...any) error }

// fault is what an error means to the operation that met it.
type fault int

const (
	faultNone   fault = iota
	faultRetry        // a deadlock or a serialization failure: nothing happened, run it again
	faultLocked       // a lock was not free in time: nothing happened, run the rest without it
	faultStale        // a row has changed since it was read: nothing happened, run it again with locks
	faultData         // the data itself can't be stored
	faultServer       // the database is unreachable or going down; the outcome may be unknown
	faultOther
)
