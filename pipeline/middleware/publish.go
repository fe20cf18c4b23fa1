package middleware

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

var errOutputWithoutSink = errors.New("the handler returned messages, but its route has no To")

// publish sends what the handler returned to the route's sink, before the ack.
func (c *Chain) publish(r pipeline.Route, next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := next(msg)
		if err != nil || len(out) == 0 {
			return nil, err
		}
		if r.To == nil {
			return nil, pipeline.Permanent(errOutputWithoutSink)
		}
		for _, m := range out {
			pipeline.InjectTrace(msg.Context(), m.Metadata)
		}
		if err := c.send(msg.Context(), r.To, out...); err != nil {
			return nil, fmt.Errorf("publish to %s: %w", r.To.Describe(), err)
		}
		return nil, nil
	}
}

// send publishes although ctx may be over: a shutdown or a time limit of the handler must not lose
// the record that says what happens to the message next.
func (c *Chain) send(ctx context.Context, to pipeline.Sink, msgs ...*message.Message) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.opts.PublishTimeout)
	defer cancel()
	return to.Publish(ctx, msgs...)
}
