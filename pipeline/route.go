package pipeline

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Route is one flow as data: where messages come from, what handles them, where the outcome goes.
type Route struct {
	// Name is unique among all routes; it labels metrics, logs and dead letters.
	Name string
	// From is where messages come from. Required.
	From Source
	// Handle is the business: nil acks; see Permanent and RetryAfter for what errors mean.
	// Required. With a nil To the returned messages must be empty.
	Handle message.HandlerFunc
	// To receives what Handle returned, inside the chain and before the ack. Nil: nothing is
	// published.
	To Sink
	// Policy says how long a message may take and what happens when it fails. Its DeadLetter is
	// required.
	Policy Policy
	// Flow says how much may be in flight and in which order.
	Flow Flow
	// Activity is told of every message that begins and ends, so that idle sources can be stopped.
	// May be nil.
	Activity Activity
}

// Source is where messages come from: a Kafka topic and group, a Redis stream and group, all
// elastic streams of a kind. It never shows a broker's own type.
type Source interface {
	// Describe works offline, for `millrace topology`.
	Describe() Endpoint
	// Open begins to read. The caller owns the Subscription: it drains and closes it.
	// ctx bounds the opening only.
	Open(ctx context.Context, f Flow) (Subscription, error)
}

// Limiter is a Source whose settings say how often a message may be delivered, where the route's
// Policy says nothing. It is asked when the route is opened.
type Limiter interface{ MaxDeliveries() int }

// Subscription is an opened Source. The topic argument of Subscribe is ignored: a Subscription
// reads what its Source describes. Subscribe may be called once.
//
// Every message it emits carries its Origin in the context (OriginFrom), and the context stays
// alive until the message is acked or nacked. Only a Close that gives up on messages in flight
// cancels their contexts: after a Drain in time there are none.
type Subscription interface {
	message.Subscriber
	// Drain stops reading, lets what is in flight finish and its acks be flushed, then closes the
	// message channel. When ctx ends first it returns ctx.Err(), and what is left is
	// delivered again elsewhere. Safe to call more than once.
	Drain(ctx context.Context) error
}

// Sink is where messages go.
type Sink interface {
	// Describe works offline, for `millrace topology`.
	Describe() Endpoint
	// Publish returns nil when all messages are durable at the far side; on an error any of them
	// may be. Safe for concurrent use; implementations batch concurrent calls where the broker
	// likes it.
	Publish(ctx context.Context, msgs ...*message.Message) error
}

// Endpoint describes one end of a route for people and tools.
type Endpoint struct {
	Kind  string `json:"kind"`            // kafka, redis-stream, elastic-streams, …
	Name  string `json:"name"`            // topic, stream or key pattern
	Group string `json:"group,omitempty"` // consumer group, or empty for broadcast
}

// String returns "kind name (group)".
func (e Endpoint) String() string {
	s := e.Kind + " " + e.Name
	if e.Group != "" {
		s += " (" + e.Group + ")"
	}
	return s
}

// Policy is what happens to one message of a route over time.
type Policy struct {
	// Timeout bounds one run of the handler by its context. Zero: DefaultTimeout. Negative: no
	// limit.
	Timeout time.Duration
	// LongestHold is how long a handler may have a message before it is reported as stuck and no
	// longer kept alive at the broker. Zero: ten times Timeout with its default, no limit when
	// Timeout has none. Negative: no limit.
	LongestHold time.Duration
	// Retry says where a failed message waits. The zero value nacks: the transport delivers it
	// again. A delay that the error asks for (RetryAfter) is then waited for before the nack, with
	// the message in flight, at most until the longest hold, the drain or the loss of the
	// partition: the message uses its place in the window or its slot meanwhile.
	Retry Retry
	// MaxDeliveries is how often a message that would be nacked may be delivered
	// (Origin.Delivered): the last failure dead-letters it with class delivery_limit, and what
	// comes after all (a message that kills the process never fails) is dead-lettered unhandled.
	// Zero: what the settings of the source say (Limiter), otherwise no limit. Negative: no limit.
	// It needs a DeadLetter, and a transport that counts: Redis streams do, over all readers; Kafka
	// counts what one reader is given again after a nack, and begins again with the next owner of
	// the partition. Leave it at zero where a ledger counts attempts.
	MaxDeliveries int
	// DeadLetter receives what can never succeed, in the format of DeadLetter.Message, and cut when
	// it refuses that for good (PublishDeadLetter). A dead letter that it refuses even then fails
	// the process. Required: Drop on a route whose messages may be lost.
	DeadLetter Sink
}

// DefaultTimeout is the time limit of a handler whose Policy names none.
const DefaultTimeout = 30 * time.Second

// holdFactor times Timeout is the longest hold of a Policy that names none.
const holdFactor = 10

// TimeLimit returns Timeout with its default applied; zero means no limit.
func (p Policy) TimeLimit() time.Duration {
	if p.Timeout == 0 {
		return DefaultTimeout
	}
	return max(p.Timeout, 0)
}

// Hold returns LongestHold with its default applied; zero means no limit.
func (p Policy) Hold() time.Duration {
	if p.LongestHold == 0 {
		return holdFactor * p.TimeLimit()
	}
	return max(p.LongestHold, 0)
}

// Drop is the DeadLetter of a route whose messages may be lost: what can never succeed, and what
// makes the handler panic, is logged, counted (millrace_messages_total with the outcome dropped)
// and acked. As any other Sink it forgets what is published. A delivery limit (MaxDeliveries) does
// not count with it.
var Drop Sink = drop{} //nolint:gochecknoglobals // a constant, but Go has none of this type

type drop struct{}

// Describe says that nothing is kept.
func (drop) Describe() Endpoint { return Endpoint{Kind: "drop", Name: "messages"} }

// Publish forgets the messages.
func (drop) Publish(context.Context, ...*message.Message) error { return nil }

// Retry is the way of a message that failed and may succeed later.
type Retry struct {
	// To is the retry topic. Nil: the message is nacked. One route must read it, with the same
	// Handle and Policy; that route believes the count of a record and its due time, others do not.
	// A retry record that it refuses for good is dead-lettered.
	To Sink
	// ReadElsewhere says that a route of another process reads the retry topic.
	ReadElsewhere bool
	// TakesReplays says that the retry topic also takes replayed dead letters of this route. Set it
	// when the route that reads the topic runs the same Handle: other consumers of From then do not
	// see the replay. False: a replay goes to where the message came from.
	TakesReplays bool
	// OnlyRetryAfter sends only errors of RetryAfter to the retry topic and nacks all others: for a
	// route whose backlog should wait where it is while a server is away.
	OnlyRetryAfter bool
	// Max is how many retries follow the first attempt before the message is dead-lettered.
	// Zero: the handler counts (for example in a ledger), the chain never gives up by itself.
	Max int
	// Backoff is the delay when the error names none (RetryAfter).
	Backoff Backoff
	// Payload makes the retry record's payload from the failed one; retry counts from 1. Nil:
	// unchanged.
	Payload func(payload []byte, retry int) ([]byte, error)
}

// Flow is how much of a source may be in flight at once, and in which order.
type Flow struct {
	// Window is how many messages of one partition may be unacknowledged. Zero: the transport's
	// default.
	Window int
	// Order is which messages must not overtake each other.
	Order Order
	// MaxInFlight bounds the messages in flight over the whole subscription. Zero: no bound but
	// Window and slots.
	MaxInFlight int
	// LongestHold is the Policy's Hold, which the Runtime puts here for the transport; a Route
	// leaves it at zero. Zero: the transport's default.
	LongestHold time.Duration
	// Gate, when it answers false, stops reading until it answers true again; what is in flight
	// goes on. It is asked often and must be cheap. Nil: always open.
	Gate func() bool
}

// Order says which messages must not overtake each other. A message that leaves the source is
// overtaken: one that goes to a retry topic or to the dead letters. A route that must keep its
// order has no retry topic: a nacked message keeps its place. On a Redis stream any order means one
// slot, and elastic streams refuse an order.
type Order int

// The orders a route can ask for.
const (
	OrderNone      Order = iota // as fast as possible
	OrderKey                    // messages with the same key one after another
	OrderPartition              // one message of a partition at a time
)

// String returns none, key or partition.
func (o Order) String() string {
	switch o {
	case OrderKey:
		return "key"
	case OrderPartition:
		return "partition"
	default:
		return "none"
	}
}

// Activity is told when a message of a route comes in flight and when it is done with.
// Both are called on the message's goroutine and must be cheap and safe for concurrent use.
type Activity interface {
	Began(Origin)
	Ended(Origin)
}
