package middleware

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

var errOutputWithoutSink = errors.New("the handler returned messages, but its route has no To")

// publishing is the step publish: it sends what the handler returned to the route's sink, before the
// ack. A failed publish fails the message. The Router would publish outside of all its middlewares.
func (w *route) publishing(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	out, err := next(msg)
	if err == nil && len(out) > 0 {
		err = w.publish(msg, out)
	}
	return nil, err
}

func (w *route) publish(msg *message.Message, out []*message.Message) error {
	return w.publishRecords(msg.Context(), w.records(nil, msg, out))
}

// records appends the records of a message's outputs.
func (w *route) records(records []*message.Message, msg *message.Message, out []*message.Message) []*message.Message {
	for _, m := range out {
		record := withoutHistory(m)
		pipeline.InjectTrace(msg.Context(), record.Metadata)
		records = append(records, record)
	}
	return records
}

func (w *route) publishRecords(ctx context.Context, records []*message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil { // a sink may panic, too
			err = panicked(p)
		}
	}()
	if w.To == nil {
		return pipeline.Permanent(errOutputWithoutSink)
	}
	if err := w.send(ctx, w.To, records...); err != nil {
		return fmt.Errorf("publish to %s: %w", w.To.Describe(), err)
	}
	return nil
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
