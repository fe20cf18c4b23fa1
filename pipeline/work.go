package pipeline

import "time"

// RouteWork is what one process has done of a route since it started, as its chain of middlewares tells it.
type RouteWork struct {
	Acked    uint64 `json:"acked"`     // messages that were acknowledged because they were handled
	InFlight int64  `json:"in_flight"` // messages between receiving and ack or nack
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
