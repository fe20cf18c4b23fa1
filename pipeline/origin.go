package pipeline

import "context"

// Origin is the place that a message came from, as its transport describes it.
type Origin struct {
	Kind      string // kind of the transport: kafka, redis-stream, …
	Source    string // topic or stream
	Position  string // the message's place, source included; only the transport reads its form
	Group     string // consumer group; empty for broadcast
	Key       string // record key or entry key; may be empty
	Delivered int64  // deliveries so far, this one included; 1 when the transport can't count
	Excused   int64  // of those, how many don't count towards Policy.MaxDeliveries
	Malformed error  // decoding error of the transport; the chain fails the message with it
}

// String returns the position, or the source where the transport has no positions.
func (o Origin) String() string {
	if o.Position != "" {
		return o.Position
	}
	return o.Source
}

type originKey struct{}

// WithOrigin returns a context that carries o. Transports call it for every message they emit.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginFrom returns the origin of the message being handled, or the zero Origin.
func OriginFrom(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	return o
}

type revokedKey struct{}

// WithRevoked returns a context whose message loses its place when done is closed: the transport
// takes the partition away from this instance. The message's context goes on, because the outcome
// of a handler still counts. A transport calls it for each message that it emits, unless it takes
// nothing away.
func WithRevoked(ctx context.Context, done <-chan struct{}) context.Context {
	return context.WithValue(ctx, revokedKey{}, done)
}

// Revoked returns a channel that is closed when this instance loses the partition of the message
// being handled. The transport then waits for the ack or nack: a handler that waits should nack.
// The channel is nil, and so never ready, when the transport never takes a partition away.
func Revoked(ctx context.Context) <-chan struct{} {
	done, _ := ctx.Value(revokedKey{}).(<-chan struct{})
	return done
}

type heldKey struct{}

// WithHeld returns a context whose message may only be started while held returns true. After that
// the transport gives the message to another instance. A transport calls it for each message that
// it emits and may lose in this way. held must be fast.
func WithHeld(ctx context.Context, held func() bool) context.Context {
	return context.WithValue(ctx, heldKey{}, held)
}

// Held reports whether the message with this context may be started. The chain nacks a message that
// may not, and calls no handler.
func Held(ctx context.Context) bool {
	held, limited := ctx.Value(heldKey{}).(func() bool)
	return !limited || held()
}
