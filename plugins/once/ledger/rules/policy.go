package rules

import "time"

// Next is the next action of the caller of Accept, Begin or Settle.
type Next int

// The next actions. Each comment names the calls that return it.
const (
	Enqueue     Next = iota + 1 // Accept: enqueue it, or call NotEnqueued; then ack
	Overflow                    // Accept: ack; the stream is full, and the feeder enqueues it
	CallNow                     // Accept: begin it now
	Settled                     // Accept: ack; the effect is settled
	Paused                      // Accept: ack; the feeder enqueues it after the resume
	Conflict                    // Accept, Begin: ack; there is a dead letter
	Send                        // Begin: send the stored request, then Settle
	Lookup                      // Begin: look up the outcome of the key, then Settle
	Ack                         // Begin, Settle: ack, nothing else to do
	Retry                       // Begin, Settle: publish a retry record, due in RetryIn, then ack
	Unannounced                 // Begin: ack; there is no such effect, and there is a dead letter
)

// String returns the lower-case name.
func (n Next) String() string {
	names := [...]string{"none", "enqueue", "overflow", "call_now", "settled", "paused", "conflict", "send", "lookup", "ack", "retry", "unannounced"}
	if n < 0 || int(n) >= len(names) {
		return "invalid"
	}
	return names[n]
}

// Policy has the limits of a ledger. It is safe for concurrent use.
type Policy struct {
	MaxAttempts int           // sends per effect
	MaxLookups  int           // lookups per effect; with ByKey 0 means that the far side has none
	MaxReleased int           // counted releases before the effect is FAILED or looked up
	Lease       time.Duration // of a begin
	// KeyTTL is the age of a key above which a lookup precedes each send. Above it, too, lookups that
	// are always refused end, after twice MaxReleased of them.
	KeyTTL time.Duration
	// Repeat is what the far side does with a second request.
	Repeat Repeat
	// UnderWay is the longest time that a request is under way after its last byte has left. Only
	// ByLookup uses it.
	UnderWay time.Duration
	Delay    func(failures int) time.Duration
	Instance string
	// Lost are the times of which the ledger was restored.
	Lost []Lost
}

// EventKind is the kind of an event.
type EventKind int

// The events.
const (
	EventAccept      EventKind = iota // a record without a row: the row is new
	EventAcceptAgain                  // a record that has a row
	EventNotEnqueued                  // the stream was full, or the group paused
	EventBegin                        // a worker has read an entry or a retry record
	EventSettle                       // a call ended
	EventCancel                       // the group is cancelled
	EventEnqueued                     // the feeder has added the effect to the stream
	EventStreamLost                   // the stream was lost
	EventReplay                       // an operator replays a dead letter
	EventResolve                      // an operator resolves an effect that may have happened
)

// Event is the input of a transition. Kind determines which fields are read.
type Event struct {
	Kind        EventKind
	Now         time.Time
	Group       GroupState // accept, accept again, begin, replay, resolve
	SameRequest bool       // accept again, begin: the request equals the stored one
	CallNow     bool       // accept, accept again
	StreamFull  bool       // accept, accept again: the stream takes no entry
	Result      CallResult // settle
	Published   time.Time  // accept: when its record was published; zero: it has none
	Version     int64      // enqueued: version of the row that was enqueued
	Resolution  Resolution // resolve
}

// Writes is what is written in addition to the row, in the same transaction.
type Writes struct {
	Attempt *Attempt // the attempt that has ended; nil: none
	Settled bool     // the row was settled by this event: summary and outcome event
	// LeftState is the final state that an operator's action has ended. Its summary counts one
	// less.
	LeftState       State
	DeadLetterClass string // class of a dead letter; empty: none
}

// Decision is the result for the caller.
type Decision struct {
	Next     Next
	RetryIn  time.Duration
	Stale    bool    // settle: the row has another epoch; nothing changed
	Repeated bool    // settle: this epoch was settled before; nothing changed
	Reason   string  // begin, for logs: settled, leased, not_due, paused, cancelled, exhausted
	Refused  Refusal // replay, resolve: the reason; nothing changed
}

// Apply is the transition function. It is pure and accepts every row with every event. Each change
// increments the version.
func (p Policy) Apply(row Row, ev Event) (Row, Writes, Decision) {
	next, eff, d := p.transition(row, ev)
	if next != row {
		next.Version = row.Version + 1
	}
	return next, eff, d
}

func (p Policy) transition(row Row, ev Event) (Row, Writes, Decision) {
	switch ev.Kind {
	case EventAccept:
		return p.accept(row, ev)
	case EventAcceptAgain:
		return p.acceptAgain(row, ev)
	case EventBegin:
		return p.begin(row, ev)
	case EventSettle:
		return p.settle(row, ev)
	case EventCancel:
		return p.cancel(row, ev)
	case EventReplay:
		return p.replay(row, ev)
	case EventResolve:
		return p.resolve(row, ev)
	case EventNotEnqueued, EventStreamLost:
		// A wrong "stream" would strand the effect; a wrong "none" only enqueues it twice.
		if !row.State.Settled() && row.Queue == QueueStream {
			row = row.queuedIn(QueueNone, ev.Now)
		}
	case EventEnqueued:
		if !row.State.Settled() && row.Version == ev.Version {
			row = row.queuedIn(QueueStream, ev.Now)
		}
	}
	return row, Writes{}, Decision{}
}
