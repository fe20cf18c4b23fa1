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
		records := make([]*message.Message, len(out))
		for i, m := range out {
			records[i] = withoutHistory(m)
			pipeline.InjectTrace(msg.Context(), records[i].Metadata)
		}
		if err := c.send(msg.Context(), r.To, records...); err != nil {
			return nil, fmt.Errorf("publish to %s: %w", r.To.Describe(), err)
		}
		return nil, nil
	}
}

func (c *Chain) send(ctx context.Context, to pipeline.Sink, msgs ...*message.Message) error {
	ctx, cancel := c.publishContext(ctx)
	defer cancel()
	return to.Publish(ctx, msgs...)
}

// publishContext outlives ctx: a shutdown or a time limit of the handler must not lose the record
// that says what happens to the message next.
func (c *Chain) publishContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.opts.PublishTimeout)
}
