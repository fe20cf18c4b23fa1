// Package envelope carries the messages of a batch through Watermill's Router, which passes on one
// message at a time: the Runtime puts a Batch into the context of an empty message, and the chain of
// package middleware takes it out again.
package envelope

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Message is a message of a batch.
type Message struct {
	*message.Message
	Received time.Time // its batch may begin much later
}

// Batch is the content of an envelope.
type Batch struct {
	// Messages are in the order of the subscription. The chain acks or nacks each of them.
	Messages []Message
	// Go calls a function on a goroutine of the Runtime.
	Go func(func())
	// Release frees the place of the batch, so that the next batch of the route may be handled. Only
	// the first call counts. With pipeline.Batch.PerSource it does nothing, because only the end of
	// the handler frees the place.
	Release func()
	// Returned is called by the Runtime when the chain has returned.
	Returned func()
}

type key struct{}

// New returns the message that carries b, with a context that ends with ctx.
func New(ctx context.Context, b Batch) *message.Message {
	return message.NewMessageWithContext(context.WithValue(ctx, key{}, b), "", nil)
}

// Open returns the batch that an envelope carries.
func Open(envelope *message.Message) Batch {
	b, _ := envelope.Context().Value(key{}).(Batch)
	return b
}
