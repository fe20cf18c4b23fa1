package pipeline

import "time"

// RouteWork is what one process does of a route, as its chain of middlewares tells it.
type RouteWork struct {
	// DonePerSecond are the messages per second that were acknowledged because they were handled, over the last
	// seconds. Nil: not known, as at first.
	DonePerSecond *float64 `json:"done_per_second,omitempty"`
	// FailedPerSecond are those whose handling failed, whatever became of them. One that is tried again counts each time.
	FailedPerSecond *float64 `json:"failed_per_second,omitempty"`
	InFlight        int64    `json:"in_flight"` // messages between receiving and ack or nack
	// Done and Failed are the messages since the process started.
	Done   uint64 `json:"-"`
	Failed uint64 `json:"-"`
	// LastError is that of the last message that failed and is tried again. Nil: there was none.
	LastError *LastError `json:"last_error,omitempty"`
}

// LastError says why a message failed that is tried again.
type LastError struct {
	At     time.Time `json:"at"`     // when it failed
	Record string    `json:"record"` // the message, as Origin.String has it, such as orders/4@17
	Class  string    `json:"class"`
	Text   string    `json:"text"` // the beginning of the error, as printable text in one line
	// Instance is the one that handled it. Empty: this process.
	Instance string `json:"instance,omitempty"`
}
