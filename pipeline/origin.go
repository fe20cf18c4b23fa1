package pipeline

import (
	"context"
	"fmt"
)

// Origin says where a message came from.
type Origin struct {
	Kind      string // kafka or redis-stream
	Name      string // topic or stream
	Group     string // consumer group; empty for broadcast
	Key       string // record key or entry key; may be empty
	Partition int32  // Kafka only
	Offset    int64  // Kafka only
	EntryID   string // Redis only
	Delivered int64  // times delivered, this time included; 1 when the transport can't know
	Malformed error  // why the transport could not decode the message; the chain fails it with that, unhandled
}

// String returns topic/partition@offset for Kafka and stream@entry-id for Redis.
func (o Origin) String() string {
	if o.EntryID != "" {
		return o.Name + "@" + o.EntryID
	}
	return fmt.Sprintf("%s/%d@%d", o.Name, o.Partition, o.Offset)
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
