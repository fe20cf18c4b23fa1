// Package failpoint makes a process fail at the moments at which a failure does most harm. It does
// so only in a binary built with the tag faults (`make test-faults`).
//
// Without the tag Hit is an empty function that the compiler leaves out, and no setting enables it.
// With the tag the process reads what to do from the environment:
//
//	MILLRACE_FAULT_POINT=after-insert:37            SIGKILL to itself at the 37th reach
//	MILLRACE_FAULT_POINT=after-sending:5:stop       SIGSTOP to itself; the test sends SIGCONT
//	MILLRACE_FAULT_POINT=before-sending:*100:panic  a panic at every 100th reach
//	MILLRACE_FAULT_POINT=after-sending:*100:hang    that goroutine never returns
//
// Several are separated by commas. MILLRACE_FAULT_FILE names a file with the same text. On SIGUSR1
// the process reads that file and renames it to end in .armed. It replaces all earlier points.
package failpoint

// Point is a named moment.
type Point string

// The points, in the order in which a payout passes them.
const (
	AfterKafkaRead Point = "after-kafka-read" // a record is in the window, no handler has seen it
	BeforeInsert   Point = "before-insert"    // a handler has the record, but no row
	InTransaction  Point = "in-transaction"   // the ledger has read, but not committed
	AfterInsert    Point = "after-insert"     // its row is committed, without an entry
	AfterXADD      Point = "after-xadd"       // its entry is in the stream, the record not acked
	BeforeMark     Point = "before-mark"      // the record is acked, its offset not marked
	AfterRead      Point = "after-read"       // entries are pending to this reader, no slot has one
	BeforeSending  Point = "before-sending"   // a handler has it, the row is not SENDING
	AfterSending   Point = "after-sending"    // SENDING is committed, the call has not started
	AfterCall      Point = "after-call"       // the Money API's answer is not committed
	BeforeXACK     Point = "before-xack"      // everything is committed, the entry is still pending
	CleanUp        Point = "clean-up"         // a drained stream is inactive, but not deleted
	Reclaim        Point = "reclaim"          // entries were claimed, the reader does not have them
	FeederBatch    Point = "feeder-batch"     // a batch is in the stream, its rows do not say so
	Told           Point = "told"             // results of effects are published, and the ledger still has them
	Drain          Point = "drain"            // reading has stopped, with messages in flight
)

// The points in the order in which the events of a job pass them.
const (
	Logged    Point = "logged"    // events are in the logs of their jobs, but not in the feed
	Published Point = "published" // they are in the feed, and their entries are still pending
)

// The points in the order in which a user of a waiting room passes them.
const (
	Promoted Point = "promoted" // users have leases, and no instance was sent their notices
	Routed   Point = "routed"   // instances were sent the notices, which are still pending
	Claimed  Point = "claimed"  // leases are claimed, and the users have no tokens
	Finished Point = "finished" // the lease has ended, and the shop has no answer
)

// The points in the order in which the draw of a pre-queue passes them.
const (
	Ordered Point = "ordered" // the users are in the drawn order, and none has a place
	Drawn   Point = "drawn"   // a part of the users has places
)

// The points in the order in which the replay of a dead letter passes them.
const (
	ReplayBegun Point = "replay-begun" // the store knows of it, and nothing was published
	ReplayDone  Point = "replay-done"  // it is published, or in the ledger, and the store does not know
)

// ReplayPoints returns the points of a replay.
func ReplayPoints() []Point { return []Point{ReplayBegun, ReplayDone} }

// RoomPoints returns the points of a waiting room.
func RoomPoints() []Point { return []Point{Promoted, Routed, Claimed, Finished} }

// DrawPoints returns the points of a draw.
func DrawPoints() []Point { return []Point{Ordered, Drawn} }

// EventPoints returns the points of events.
func EventPoints() []Point { return []Point{Logged, Published} }

// EffectPoints returns the points of an effect of any kind.
func EffectPoints() []Point {
	return []Point{AfterKafkaRead, BeforeInsert, InTransaction, AfterInsert, AfterXADD, BeforeMark, AfterRead, AfterSending, AfterCall, BeforeXACK, Told}
}

// Points returns the points of a payout.
func Points() []Point {
	return []Point{
		AfterKafkaRead, BeforeInsert, InTransaction, AfterInsert, AfterXADD, BeforeMark, AfterRead, BeforeSending, AfterSending,
		AfterCall, BeforeXACK, CleanUp, Reclaim, FeederBatch, Drain,
	}
}
