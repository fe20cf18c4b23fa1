// Package failpoint names the moments at which a process is most awkward to lose, and, in a binary built
// with the tag faults, loses it there: `make test-faults` builds such a binary.
//
// Without the tag Hit is an empty function that the compiler leaves out: production pays nothing, and
// no setting can turn it on. With the tag the process reads what to do from the environment:
//
//	MILLRACE_FAULT_POINT=after-insert:37            SIGKILL to itself at the 37th reach
//	MILLRACE_FAULT_POINT=after-sending:5:stop       SIGSTOP to itself; whoever watches it sends SIGCONT
//	MILLRACE_FAULT_POINT=before-sending:*100:panic  a panic at every 100th reach
//	MILLRACE_FAULT_POINT=after-sending:*100:hang    that goroutine never returns
//
// Several are separated by commas. MILLRACE_FAULT_FILE names a file with the same text that is read, and
// renamed to end in .armed, whenever the process gets SIGUSR1; it takes the place of what was armed before.
package failpoint

// Point is a named moment.
type Point string

// The points, in the order in which a payout passes them.
const (
	AfterKafkaRead Point = "after-kafka-read" // a record is in the window, no handler has seen it
	BeforeInsert   Point = "before-insert"    // a handler has the record, and has not written it down
	InTransaction  Point = "in-transaction"   // a transaction of the ledger has read, and has not committed
	AfterInsert    Point = "after-insert"     // its row is committed, its entry is not in the stream
	AfterXADD      Point = "after-xadd"       // its entry is in the stream, the record is not acknowledged
	BeforeMark     Point = "before-mark"      // the record is acknowledged, its offset is not marked
	AfterRead      Point = "after-read"       // entries are pending to this reader, no slot has one
	BeforeSending  Point = "before-sending"   // a handler has it, the row is not SENDING
	AfterSending   Point = "after-sending"    // SENDING is committed, the call has not begun
	AfterCall      Point = "after-call"       // the Money API has answered, the answer is not committed
	BeforeXACK     Point = "before-xack"      // everything is committed, the entry is still pending
	CleanUp        Point = "clean-up"         // a drained stream is off the active set, and not deleted
	Reclaim        Point = "reclaim"          // entries were claimed, the reader does not know them
	FeederBatch    Point = "feeder-batch"     // a batch is in the stream, its rows do not say so
	Drain          Point = "drain"            // reading has stopped, what is in flight is not finished
)

// Points returns all of them.
func Points() []Point {
	return []Point{
		AfterKafkaRead, BeforeInsert, InTransaction, AfterInsert, AfterXADD, BeforeMark, AfterRead, BeforeSending, AfterSending,
		AfterCall, BeforeXACK, CleanUp, Reclaim, FeederBatch, Drain,
	}
}
