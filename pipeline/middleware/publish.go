package middleware

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
)

var errOutputWithoutSink = errors.New("the handler returned messages, but its route has no To")

// stepPublish is the step publish: it sends what the handler returned to the outputs of the route, before
// the ack. A failed publish fails the message. The Router would publish outside of all its middlewares.
func (w *route) stepPublish(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	out, err := next(msg)
	if err == nil && len(out) > 0 {
		err = w.publish(msg, out)
	}
	return nil, err
}

func (w *route) publish(msg *message.Message, out []*message.Message) error {
	all, err := w.addOutputs(nil, msg, out, nil)
	if err != nil {
		return err
	}
	return w.publishAll(msg.Context(), all)
}

// outbound are the records of one output.
type outbound struct {
	name    string // of the output; empty: To
	sink    pipeline.Sink
	records []*message.Message // in the order in which the handler returned them
	of      []*delivery        // the message of each record; nil outside of a batch
}

// addOutputs adds the records of what the handler returned for a message, each to its output. An error
// adds none of them.
func (w *route) addOutputs(all []outbound, msg *message.Message, out []*message.Message, of *delivery) ([]outbound, error) {
	for _, m := range out {
		if _, err := w.sinkFor(m); err != nil {
			return all, err
		}
	}
	for _, m := range out {
		name := pipeline.OutputOf(m)
		i := slices.IndexFunc(all, func(o outbound) bool { return o.name == name })
		if i < 0 {
			sink, _ := w.sinkFor(m)
			i, all = len(all), append(all, outbound{name: name, sink: sink})
		}
		record := withoutHistory(m)
		pipeline.InjectTrace(msg.Context(), record.Metadata)
		all[i].records = append(all[i].records, record)
		if of != nil {
			all[i].of = append(all[i].of, of)
		}
	}
	return all, nil
}

// sinkFor returns the output that a message of the handler is for.
func (w *route) sinkFor(m *message.Message) (pipeline.Sink, error) {
	name := pipeline.OutputOf(m)
	if sink, has := w.Outputs[name]; has {
		return sink, nil
	}
	switch {
	case name == "" && w.To != nil:
		return w.To, nil
	case len(w.Outputs) == 0 && name == "":
		return nil, pipeline.Permanent(errOutputWithoutSink)
	case len(w.Outputs) == 0:
		return nil, pipeline.Permanent(fmt.Errorf("the handler returned a message for the output %q, but its route has no Outputs", name))
	}
	names := strings.Join(slices.Sorted(maps.Keys(w.Outputs)), ", ")
	if name == "" {
		return nil, pipeline.Permanent(fmt.Errorf("%w: name one of its Outputs with SendTo: %s", errOutputWithoutSink, names))
	}
	return nil, pipeline.Permanent(fmt.Errorf("the handler returned a message for the output %q, but the Outputs of its route are %s", name, names))
}

// publishAll publishes to one output after the other, until one fails.
func (w *route) publishAll(ctx context.Context, all []outbound) error {
	for _, o := range all {
		if err := w.publishTo(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (w *route) publishTo(ctx context.Context, o outbound) (err error) {
	defer func() {
		if p := recover(); p != nil { // a sink may panic, too
			err = panicked(p)
		}
	}()
	links := linksTo(o.of)
	if len(o.of) == 1 {
		ctx, links = trace.ContextWithSpan(ctx, o.of[0].span), nil
	}
	if err := w.sendLinked(ctx, o.sink, links, o.records...); err != nil {
		return fmt.Errorf("publish to %s: %w", o.sink.Describe(), err)
	}
	return nil
}

// send publishes records of the chain's own, for one message or without any.
func (c *Chain) send(ctx context.Context, to pipeline.Sink, msgs ...*message.Message) error {
	return c.sendLinked(ctx, to, nil, msgs...)
}

// sendLinked publishes records for the messages in links, for one message without links.
func (c *Chain) sendLinked(ctx context.Context, to pipeline.Sink, links []trace.Link, msgs ...*message.Message) (err error) {
	ctx, cancel := c.publishContext(ctx)
	defer cancel()
	ctx, span := c.sendSpan(ctx, to.Describe(), links, msgs...)
	err = errUnsettled // if the sink panics
	defer func() { endCall(span, err) }()
	return to.Publish(ctx, msgs...)
}

// publishContext outlives ctx: a shutdown or a time limit of the handler must not lose the record
// that says what happens to the message next.
func (c *Chain) publishContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.opts.PublishTimeout)
}
