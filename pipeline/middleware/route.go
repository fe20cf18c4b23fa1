package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
)

// route is the chain of one route. Each message passes begin, handle, settle and end, in this
// order. The fields are prepared once, so that a message costs little.
type route struct {
	*Chain
	pipeline.Route
	from     pipeline.Endpoint
	call     message.HandlerFunc // Handle with Options.Around
	limit    time.Duration       // zero: none
	hold     time.Duration       // zero: none
	retriers []string
	metrics  routeMetrics

	spanName    string
	spanOptions []trace.SpanStartOption
}

func (c *Chain) newRoute(r pipeline.Route) *route {
	r.Policy.MaxDeliveries = maxDeliveries(r)
	w := &route{
		Chain: c, Route: r, from: r.From.Describe(), call: r.Handle, limit: r.Policy.TimeLimit(), hold: r.Policy.Hold(),
		retriers: c.retriers(r), metrics: c.metrics.of(r.Name),
		spanName: "process " + r.Name, spanOptions: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)},
	}
	if r.HandleBatch != nil {
		w.call = callBatch(r.HandleBatch)
		w.metrics.batched(c.metrics, r.Name)
	}
	if c.opts.Around != nil {
		if around := c.opts.Around(r, w.call); around != nil {
			w.call = around // the binary's own; all that follows treats it as part of the handler
		}
	}
	return w
}

var errUnsettled = errors.New("the work on the message did not return: a panic of the chain, or runtime.Goexit")

// errNotHeld nacks a message that another instance receives.
var errNotHeld = errors.New("the message belongs to another instance now")

// delivery is one delivery of a message on its way through the chain.
type delivery struct {
	msg     *message.Message
	origin  pipeline.Origin
	outer   context.Context // of the transport
	span    trace.Span
	started time.Time
	payload message.Payload // unchanged: a handler may change the message
	spent   history
	refused error // why it must not be handled
	err     error // why it is nacked; nil: it is acked; errUnsettled until settle has ended

	// The following fields are used in a batch.
	correlation string
	out         []*message.Message
	left        bool // another goroutine has the message, or it has ended
}

// received notes that a message has come. It may wait for its batch.
func (w *route) received(msg *message.Message) {
	if w.Activity != nil {
		// A source with a message in flight is never idle.
		w.Activity.Began(pipeline.OriginFrom(msg.Context()))
	}
	w.metrics.received()
}

// begin prepares a message that was received at a time. Each begin is followed by one end.
func (w *route) begin(d *delivery, msg *message.Message, at time.Time) {
	d.msg, d.outer, d.payload, d.started, d.err = msg, msg.Context(), msg.Payload, at, errUnsettled
	d.origin = pipeline.OriginFrom(d.outer)
	d.span = w.startSpan(d) // covers the retry and dead-letter publishes
	d.spent = spentBy(msg, w.retriers)
	d.refused = refuse(w.Policy, d.origin)
}

// end notes that a message is acked or nacked.
func (w *route) end(d *delivery) {
	if errors.Is(d.err, errUnsettled) {
		w.count(d.msg, outcomeNacked, d.err)
	}
	if w.Activity != nil {
		w.Activity.Ended(d.origin)
	}
	d.msg.SetContext(d.outer)
	endSpan(d.span, d.err)
	w.metrics.end(d.started)
}

// single passes one message through the chain. An error nacks it.
func (w *route) single(msg *message.Message) ([]*message.Message, error) {
	var d delivery
	w.received(msg)
	w.begin(&d, msg, time.Now())
	defer w.end(&d)
	if !pipeline.Held(d.outer) {
		d.err = errNotHeld
		return nil, d.err
	}
	err := d.refused
	if err == nil {
		err = w.handle(&d, w.call)
	}
	w.settle(&d, err) // nothing after it can fail a message
	return nil, d.err
}

// handle calls the handler, and publishes what it returned. A failed publish fails the message.
func (w *route) handle(d *delivery, h message.HandlerFunc) error {
	correlation := correlationOf(d.msg)
	out, err := w.limited(d.msg, h, true)
	if err == nil {
		err = correlate(out, correlation)
	}
	if err != nil {
		return err
	}
	return w.publish(d, out)
}
