package pipeline

import (
	"context"
	"time"
)

// Origin is the place that a message came from, as its transport describes it.
type Origin struct {
	Kind     string // kind of the transport: kafka, redis-stream, …
	Source   string // topic or stream
	Position string // the message's place, source included; only the transport reads its form
	Group    string // consumer group; empty for broadcast
	Key      string // record key or entry key; may be empty
}

// String returns the position, or the source where the transport has no positions.
func (o Origin) String() string {
	if o.Position != "" {
		return o.Position
	}
	return o.Source
}

// Delivery is one delivery of a message, as its transport describes it. A transport puts one into the
// context of every message that it emits (WithDelivery), and a handler reads it there (DeliveryFrom).
type Delivery struct {
	Origin
	Delivered int64     // deliveries so far, this one included; 1 when the transport can't count
	Excused   int64     // of those, how many don't count towards Policy.MaxDeliveries
	Published time.Time // when the record was published, by the clock of its publisher or server; zero: not known
	Malformed error     // decoding error of the transport; the chain fails the message with it
	// Revoked is closed when this instance loses the partition of the message. The transport then waits
	// for the ack or nack, whose outcome still counts, so a handler that waits should nack. Nil, and so
	// never ready: the transport never takes a partition away.
	Revoked <-chan struct{}
	// Held reports whether this instance still has the message, and must be fast. The transport may
	// give a message that was not started to another instance, so the chain nacks it without a call of
	// the handler when Held returns false. Nil: always held.
	Held func() bool
}

// MayStart reports whether work on the message may start (Held).
func (d Delivery) MayStart() bool { return d.Held == nil || d.Held() }

type deliveryKey struct{}

// WithDelivery returns a context that carries d.
func WithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFrom returns the delivery of the message being handled, or the zero Delivery.
func DeliveryFrom(ctx context.Context) Delivery {
	d, _ := ctx.Value(deliveryKey{}).(Delivery)
	return d
}
