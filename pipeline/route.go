package pipeline

import (
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Route is one flow as data: a source, a handler, an output, and a policy for failures. Add it with
// Registry.Route.
type Route struct {
	// Name labels metrics, logs and dead letters. Required, and unique in the process.
	Name string
	// From is read for messages. Required.
	From Source
	// Handle is called once per delivery, on the message's own goroutine. It may be called for many
	// messages at once (Flow). Nil acks the message; Permanent and RetryAfter say what errors mean.
	// Required, unless HandleBatch is set.
	Handle message.HandlerFunc
	// HandleBatch is called instead of Handle, for the messages that came while earlier batches
	// were handled, up to the limits in Batch. A message on an idle route does not wait.
	HandleBatch BatchHandler
	// Batch limits the batches of HandleBatch.
	Batch Batch
	// To receives the messages that the handler returned, before the ack. Nil: it returns none, or
	// only such for Outputs.
	To Sink
	// Outputs are further outputs by name. They receive the messages that SendTo made for them, while
	// all others go to To. One output is published after the other, beginning with that of the first
	// message, and each gets its messages in the order in which the handler returned them. When one
	// fails, those after it are not published, and a retry publishes those before it again.
	Outputs map[string]Sink
	// Policy limits the time of a message and decides about failures. Its DeadLetter is required.
	Policy Policy
	// Flow limits the messages in flight and sets their order.
	Flow Flow
	// Activity is called when a message begins and ends, so that idle sources can be stopped. May
	// be nil.
	Activity Activity
	// Calls are what the handler calls outside of the pipeline: servers, such as APIs (ServerOf), and kinds of
	// effects that it enqueues (Effects.Describe of the plugin once). Topology and console show them and their
	// conditions, and nothing else uses them.
	Calls []Endpoint
	// Middlewares are steps of the chain of this route alone, and of its route NAME.retry. In the
	// routes of a Registry they are all middlewares of the route, in the order of the chain.
	Middlewares []Middleware

	plugin  string // which has registered it
	retryOf string // the route whose Retry.From has added this one; empty: none
}

// Plugin returns the name of the plugin that has registered the route. It is empty for a route that is in no
// Registry.
func (r Route) Plugin() string { return r.plugin }

// Source is an input that is not open yet, such as a Kafka topic with a group.
type Source interface {
	// Describe works offline.
	Describe() Endpoint
	// Open begins to read. ctx bounds the opening only. The caller drains and closes the
	// Subscription.
	Open(ctx context.Context, f Flow) (Subscription, error)
}

// Limiter is a Source whose settings limit the deliveries of a message, for a Policy without a
// limit. It is called when the route is opened.
type Limiter interface{ MaxDeliveries() int }

// Subscription is an opened Source. Subscribe may be called once; its topic argument is ignored.
//
// Every message carries its Delivery in its context (DeliveryFrom). The context lives until the message
// is acked or nacked. Only a Close without a completed Drain cancels it.
type Subscription interface {
	message.Subscriber
	// Drain stops reading, lets the messages in flight finish, flushes their acks and closes the
	// message channel. When ctx ends first it returns ctx.Err(), and the rest is delivered again
	// elsewhere. Drain may be called more than once.
	Drain(ctx context.Context) error
}

// Sink is an output.
type Sink interface {
	// Describe works offline.
	Describe() Endpoint
	// Publish returns nil when all messages are durable. After a *PartialError those that it does
	// not name are, after any other error any of them may be. It is called concurrently.
	Publish(ctx context.Context, msgs ...*message.Message) error
}

// Endpoint describes one end of a route.
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

// KindHTTP is the kind of an endpoint whose name is a pattern of http.ServeMux.
const KindHTTP = "http"

// KindServer is the kind of an endpoint that is called, such as an API.
const KindServer = "server"

// ServerOf returns the endpoint of a server that is called. Of the URL it has scheme, host and port, because the
// rest may be secret.
func ServerOf(address string) Endpoint {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return Endpoint{Kind: KindServer, Name: "of an address that can't be read"}
	}
	return Endpoint{Kind: KindServer, Name: u.Scheme + "://" + u.Host}
}

// ServersOf returns the endpoint of each server that is called, for Route.Calls and UseCalls.
func ServersOf(addresses ...string) (servers []Endpoint) {
	for _, address := range addresses {
		if one := ServerOf(address); !slices.Contains(servers, one) {
			servers = append(servers, one)
		}
	}
	return servers
}

// The uses of endpoints outside of routes.
const (
	UseOperations = "operations" // the operations server serves it
	UseWeb        = "web"        // the public HTTP server serves it
	UseFollows    = "follows"    // a service reads it from its end, without a group
	UseWrites     = "writes"     // a service or a handler writes it
	UseCalls      = "calls"      // a service calls it
)

// PluginEndpoint is an endpoint that a plugin uses outside of its routes.
type PluginEndpoint struct {
	Plugin string `json:"plugin"`
	Use    string `json:"use"`
	Endpoint
}

// Policy is what happens to one message of a route over time. Only DeadLetter is required.
type Policy struct {
	// Timeout limits one call of the handler, by its context. Zero: DefaultTimeout. Negative: no
	// limit.
	Timeout time.Duration
	// LongestHold is the time after which a handler counts as stuck, and its message is no longer
	// kept alive at the broker. It covers the middlewares and the publishing of the outputs too, so
	// it must be longer than Timeout and, for each output, the publish timeout of the process
	// together. Zero: ten times the time limit, but at least a minute. Negative: no limit.
	LongestHold time.Duration
	// Retry is the retry topic of failed messages. The zero value nacks a failed message, and the
	// transport delivers it again.
	Retry Retry
	// MaxDeliveries limits the deliveries of a message that is nacked (Delivery.Delivered without
	// those of Delivery.Excused). The last failure makes it a dead letter of class delivery_limit. A
	// delivery after that, for example when the message kills the process, makes one without
	// calling the handler. Zero: the limit of the source (Limiter), or none. Negative: none.
	//
	// Redis streams count over all readers. Kafka counts nacked deliveries per owner of the
	// partition, and over all owners the deaths of a process that ran the message: see "A record
	// that kills the process" in the README of plugins/kafka. Leave it at zero where a ledger counts
	// attempts.
	MaxDeliveries int
	// DeadLetter receives messages that can't succeed (DeadLetter.Message, PublishDeadLetter). If
	// it refuses even the smallest form for good, the process ends. Use Drop if messages may be
	// lost.
	DeadLetter Sink
}

// DefaultTimeout is the time limit of a Policy without one.
const DefaultTimeout = 30 * time.Second

// holdFactor times the time limit is the default of LongestHold, which is at least leastHold: a
// publish that waits for an absent broker must not count as stuck.
const (
	holdFactor = 10
	leastHold  = time.Minute
)

// TimeLimit returns Timeout with its default applied; zero means no limit.
func (p Policy) TimeLimit() time.Duration {
	if p.Timeout == 0 {
		return DefaultTimeout
	}
	return max(p.Timeout, 0)
}

// Hold returns LongestHold with its default applied; zero means no limit.
func (p Policy) Hold() time.Duration {
	limit := p.TimeLimit()
	switch {
	case p.LongestHold != 0:
		return max(p.LongestHold, 0)
	case limit == 0:
		return 0
	default:
		return max(holdFactor*limit, leastHold)
	}
}

// Drop is the DeadLetter of a route whose messages may be lost. A message that can't succeed is
// logged, counted (millrace_messages_total, outcome dropped) and acked. MaxDeliveries has no effect
// with it.
var Drop Sink = drop{} //nolint:gochecknoglobals // a constant, but Go has none of this type

type drop struct{}

// Describe implements Sink.
func (drop) Describe() Endpoint { return Endpoint{Kind: "drop", Name: "messages"} }

func (drop) Publish(context.Context, ...*message.Message) error { return nil }

// Flow limits the messages of a source in flight, and sets their order. The zero value has the
// defaults of the transport and no order.
type Flow struct {
	// Window limits the unacknowledged messages per partition. Zero: the transport's default.
	Window int
	// Order sets which messages must not overtake each other.
	Order Order
	// MaxInFlight limits the messages in flight of the whole subscription. Zero: no further limit.
	MaxInFlight int
	// LongestHold is set by the Runtime, from the Policy. Negative: no limit. Zero: the transport's own.
	LongestHold time.Duration
	// Gate stops reading while it returns false. Messages in flight continue. It is called often,
	// so it must be fast. Nil: always open. The Runtime also closes it while an operator has paused
	// the route (RoutePauser).
	Gate func() bool
}

// Order sets which messages must not overtake each other. A message in a retry topic or in the dead
// letters is overtaken; a nacked message keeps its place. A route that needs an order has no retry
// topic. A Redis stream with any order is read with a concurrency of one; elastic streams refuse
// an order.
//
// With an order, a transport delivers a message after the ack of the one before it. A batch then
// has at most one message per key or partition. For larger batches in the order of their source,
// see Batch.PerSource, with OrderNone.
type Order int

// The orders of a route.
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

// Activity observes the messages of a route. Both methods are called on the message's goroutine,
// concurrently, and must be fast.
type Activity interface {
	Began(Origin)
	Ended(Origin)
}
