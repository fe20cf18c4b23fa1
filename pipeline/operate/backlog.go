package operate

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// Measured is implemented by a pipeline.Source that can tell what its group has not done yet. It reads
// the server, so the answer is that of all instances. The transport need not be started. A topic or
// stream that does not exist has nothing to do. An error that wraps pipeline.ErrUnavailable says that
// the server does not answer.
type Measured interface {
	Backlog(context.Context) (Backlog, error)
}

// Connecting is implemented by a Measured source that connects where its transport does not run. A report calls
// Connect of one source of a kind, and passes the returned context to the Backlog of all sources of
// that kind. Close is called once, after the last of them. With an error there is nothing to close,
// and one that wraps pipeline.ErrUnavailable says that the server does not answer.
type Connecting interface {
	Measured
	Connect(context.Context) (connected context.Context, closeIt func(), err error)
}

// Backlog is what a group has not done yet. A nil field is not known.
type Backlog struct {
	// Waiting counts the messages that are not done. Without InFlight it includes those in flight.
	Waiting *int64
	// InFlight counts the messages that consumers have, and have not acknowledged.
	InFlight *int64
	// NotDue counts the retries that wait until they are due. Nil: Waiting includes them.
	NotDue *int64
	// NextDue is when the next retry is due. Zero: it is not known, or none waits.
	NextDue time.Time
	// Oldest is when the oldest message that is not done was published. Zero: it is not known, or
	// there is none.
	Oldest time.Time
	// OldestAt is the position of that message, as its Origin has it, such as orders/4@17. Empty: it is not known.
	OldestAt string
	// Streams are the parts of a source whose streams are found while it runs. Nil: it has one place.
	Streams *StreamBacklogs
}

// StreamBacklogs are the streams of a source that are furthest behind, and the number of all.
type StreamBacklogs struct {
	Total int             `json:"total"`
	Worst []StreamBacklog `json:"worst"` // at most 100, most messages first
}

// StreamBacklog is what a group has not done in one stream. A field that is null is not known.
type StreamBacklog struct {
	Stream   string     `json:"stream"`
	Waiting  *int64     `json:"waiting"`
	InFlight *int64     `json:"in_flight"`
	Oldest   *time.Time `json:"oldest"`
}

// worstStreams bounds StreamBacklogs.Worst.
const worstStreams = 100

// messages is the number of messages that are not done, as far as it is known.
func (s StreamBacklog) messages() int64 {
	if n := sum(s.Waiting, s.InFlight); n != nil {
		return *n
	}
	return 0
}

// Add adds one of the streams of b.Streams.
func (b *Backlog) Add(stream string, one Backlog) {
	if one.Waiting == nil || b.Waiting == nil {
		b.Waiting = nil
	} else {
		b.Waiting = sum(b.Waiting, one.Waiting)
	}
	b.InFlight = sum(b.InFlight, one.InFlight)
	b.Older(one.Oldest, one.OldestAt)
	s := StreamBacklog{stream, one.Waiting, one.InFlight, timeOf(one.Oldest)}
	list := b.Streams
	list.Total++
	at, _ := slices.BinarySearchFunc(list.Worst, s, func(a, b StreamBacklog) int {
		return cmp.Or(cmp.Compare(b.messages(), a.messages()), strings.Compare(a.Stream, b.Stream))
	})
	if at < worstStreams {
		list.Worst = slices.Insert(list.Worst, at, s)
		list.Worst = list.Worst[:min(len(list.Worst), worstStreams)]
	}
}

// Older makes a message the oldest one, if it is older. A zero time is not known.
func (b *Backlog) Older(published time.Time, position string) {
	if !published.IsZero() && (b.Oldest.IsZero() || published.Before(b.Oldest)) {
		b.Oldest, b.OldestAt = published, position
	}
}

// DeadLetters is offered (pipeline.Registry.Offer) by a plugin that stores dead letters.
type DeadLetters interface {
	// WaitingByRoute counts the dead letters that wait for a person, by route. ok is false without a
	// store. The plugin need not be started.
	WaitingByRoute(context.Context) (counts map[string]int64, ok bool, err error)
}
