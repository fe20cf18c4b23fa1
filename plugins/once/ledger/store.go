package ledger

import (
	"cmp"
	"context"
	"hash/fnv"
	"io"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// store is the interface to a database. Accept, claim and settle are written above it, over
// transactions. Everything rare is portable SQL over a querier.
type store interface {
	// begin starts a transaction, reads the request in one round trip, and then reads the clock.
	begin(ctx context.Context, w readRequest) (transaction, *readResult, error)
	// read runs fn outside of a transaction.
	read(ctx context.Context, fn func(q querier, now time.Time) error) error
	// update runs fn in a transaction. A group in exclusive: no claim of that group runs meanwhile. A
	// group in shared: its state does not change meanwhile.
	update(ctx context.Context, lock groupLock, fn func(q querier, now time.Time) error) error
	// settleFast settles the effects whose first send has ended done, each as it is after that begin and
	// no other. It returns which of them it has settled; the others have not changed.
	settleFast(ctx context.Context, ends []*settleItem, wait time.Duration) (settled []bool, err error)
	// confirm waits until a synchronous standby has what was committed before.
	confirm(ctx context.Context) error

	// forgetDue deletes rows of once_due that have no effect any more.
	forgetDue(ctx context.Context) error
	dialect() portable.Dialect
	// unsettled is a query of the effects of a group that are in rows of once_due. Its parameters are kind,
	// group, the cursor of the last row or an empty text, and a limit; its rows are a cursor and an id.
	unsettled() string

	migrate(ctx context.Context) error
	// fault classifies an error.
	fault(err error) fault
	// pools returns the state of the connections, without a statement.
	pools() []portable.Pool
	measureTables(ctx context.Context, to *portable.Metrics) error
	close() error
}

// groupLock is the lock of a group in an update. The zero value is none.
type groupLock struct{ exclusive, shared *groupID }

// groupID is a group with the number of its kind.
type groupID struct {
	kind int64
	name string
}

func compareGroups(a, b groupID) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
}

// rowKey is a key with the number of its kind.
type rowKey struct {
	kind  int64
	group string
	id    string
}

func (k rowKey) of() groupID { return groupID{k.kind, k.group} }

func compareKeys(a, b rowKey) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.group, b.group), cmp.Compare(a.id, b.id))
}

// Lanes is the number of lanes of a kind. A group is in one lane, by its hash.
const Lanes = 16

func laneOf(group string) int64 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, group) // a hash has no errors
	return int64(h.Sum32() % Lanes)
}

// readRequest names what a transaction reads, sorted and unique.
type readRequest struct {
	due    *dueRequest // locks due rows; read.due has their keys
	groups []groupID
	share  bool // take the locks of the groups first, in shared mode
	// pauseOf is the kind whose pause is read; 0: none.
	pauseOf int64
	keys    []rowKey
	// messages: also read the stored messages.
	messages bool
	lock     rowLock
	wait     time.Duration // for locks; zero: the setting of the session
}

// dueRequest asks for what is due in a lane, or for what waits in some rows, whether it is due or not.
type dueRequest struct {
	kind, lane int64
	rows       []int64 // nil: the lane
	limit      int
	// after is the group whose turn was last. Groups that come after it are first, and what is left of the limit is for the
	// oldest. Nil: the oldest alone.
	after *string
}

// rowLock is how effects are read.
type rowLock int

const (
	lockNone rowLock = iota
	lockWait         // wait for a row that another transaction has
	lockSkip         // leave out a row that another transaction has
)

type readResult struct {
	now    time.Time
	due    []rowKey
	rest   []int64 // rows of the request that may have more effects than its limit
	turn   string  // with after: the group whose turn was last now; empty: the last one of the lane
	alone  bool    // with after: the lane has no other group
	paused bool    // the kind of pauseOf is
	groups map[groupID]groupRow
	rows   map[rowKey]*storedRow
}

func newReadResult() *readResult {
	return &readResult{groups: map[groupID]groupRow{}, rows: map[rowKey]*storedRow{}}
}

// state is running for a group without a row.
func (r *readResult) state(g groupID) rules.GroupState {
	return cmp.Or(r.groups[g].state, rules.GroupRunning)
}

type groupRow struct {
	state  rules.GroupState
	parked bool
}

// storedRow is a row of once_effects. Its message is empty unless it was requested. rules.Row.Version
// is not stored: rows are locked before they are changed.
type storedRow struct {
	rowKey
	lane      int64
	part      string
	notBefore time.Time
	status    int // HTTP status of the last answer; 0 without one
	// lastSentAt is the start of the last send, if lookups followed it. Zero: the last call was a send,
	// or there was none.
	lastSentAt time.Time
	rules.Row
	payload []byte
	request []byte // nil: the payload
	headers string // JSON, or empty
	origin  string
	due     int64         // number of its row in once_due in PostgreSQL; 0: none
	grace   time.Duration // of a row to insert
	hint    int64         // the number of its row in once_due for ClaimRows; 0: none
	told    bool          // of a row to insert: it is settled, and its kind publishes results

	read struct { // as the table has it
		rules.Row
		status     int
		lastSentAt time.Time
	}
	inserted bool      // by insert: the row is new
	began    time.Time // by beginFast; zero: it is as it was read
}

// remember notes what was read.
func (r *storedRow) remember() {
	r.read.Row, r.read.status, r.read.lastSentAt = r.Row, r.status, r.lastSentAt
	r.Queue = rules.QueueRetry
}

// changed reports whether the table has something else.
func (r *storedRow) changed() bool {
	return stored(r.Row) != r.read.Row || r.status != r.read.status || !r.lastSentAt.Equal(r.read.lastSentAt)
}

func (r *storedRow) requestToSend() []byte {
	if r.request != nil {
		return r.request
	}
	return r.payload
}

// transaction is a running transaction. Exactly one of commit and rollback ends it; rollback after
// commit has no effect.
type transaction interface {
	// readMore adds to read, and reads the clock again.
	readMore(ctx context.Context, w readRequest, read *readResult) error
	// beginFast begins effects that have only been accepted, and adds them to read as they were. It removes
	// them from w, whose locks of groups it takes.
	beginFast(ctx context.Context, w *readRequest, b fastBegin, read *readResult) error
	// addGroups inserts missing rows of groups, in the state running.
	addGroups(ctx context.Context, groups []groupID, now time.Time) error
	// querier runs portable SQL in the transaction, for rare cases.
	querier() querier
	// commit writes everything and commits. It sets inserted in the rows of writes.inserts that are new.
	commit(ctx context.Context, writes *writeSet) error
	rollback()
}

// writeSet is what a transaction writes. All lists are sorted by key.
type writeSet struct {
	inserts  []*storedRow // with their rows in once_due, and counted
	rows     []*storedRow
	due      []*dueRow
	settled  []*dueRow // to delete
	attempts []*attemptRow
	problems []*problemRow
	results  []*resultRow
	solved   []*problemRow // to delete
	deltas   []*deltaRow
	parked   []groupID
}

type dueRow struct {
	rowKey
	number  int64 // in SQLite, for ClaimRows; 0: none
	lane    int64
	calling bool
	at      time.Time // zero: parked
	effect  *storedRow
}

type attemptRow struct {
	rowKey
	rules.Attempt
}

type problemRow struct {
	rowKey
	state rules.State
	at    time.Time
	class string
}

type resultRow struct {
	rowKey
	state                 rules.State
	at                    time.Time
	attempts              int
	receipt, class, error string
}

type deltaRow struct {
	groupPart
	number                                     int64
	accepted, done, failed, unknown, cancelled int64
}

type groupPart struct {
	kind  int64
	group string
	part  string
}

func (d *deltaRow) count(s rules.State, n int64) {
	switch s {
	case rules.Success:
		d.done += n
	case rules.Failed:
		d.failed += n
	case rules.Unknown:
		d.unknown += n
	case rules.Cancelled:
		d.cancelled += n
	}
}

// querier runs portable SQL: $n placeholders, time.Time arguments, portable.Time destinations.
type querier interface {
	exec(ctx context.Context, sql string, args ...any) (affected int64, err error)
	// query calls row for each row.
	query(ctx context.Context, row func(scanner) error, sql string, args ...any) error
	// forUpdate is the locking clause of a SELECT, with a leading space. Empty where transactions
	// are exclusive.
	forUpdate(skipLocked bool) string
}

type scanner interface{ Scan(dest ...any) error }

// fault is the class of a database error.
type fault int

const (
	faultNone   fault = iota
	faultRetry        // deadlock or serialization failure: nothing happened, run it again
	faultLocked       // a lock was not free in time: nothing happened, run the rest without it
	faultData         // this record can never be stored
	faultServer       // the database is unreachable or going down; the outcome may be unknown
	faultOther        // mostly a refusal by the state of the database: nothing happened, an operator must repair it
)
