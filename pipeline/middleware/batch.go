package middleware

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/internal/envelope"
	"github.com/millrace-io/millrace/pipeline"
)

var errResults = errors.New("wrong number of results")

// delivery is one delivery of a message in a batch, on its way through the chain.
type delivery struct {
	msg         *message.Message // as the transport sent it; it is acked or nacked
	outer       context.Context  // of the transport
	inner       context.Context  // with the span, for what is published about msg
	from        pipeline.Delivery
	span        trace.Span
	received    time.Time
	payload     message.Payload // unchanged: a middleware or a handler may change the message
	passed      passed          // what the handler is called with
	spent       history
	err         error // why it is nacked; nil: it is acked; errUnsettled until settle has ended
	correlation string
	out         []*message.Message
	left        bool // another goroutine has the message, or it has ended
}

// batch is the messages of an envelope in the chain of their route.
type batch struct {
	*route
	envelope.Batch
	ctx context.Context
	all []delivery
	at  atomic.Pointer[pipeline.Origin] // the message that the work is at, for the step hold
}

// batch passes the messages of an envelope through the chain: together through HandleBatch and the
// publishing, each by itself through the steps before them. It returns when the next batch may take
// its place. Outputs are published later, so that a slow sink delays only the messages of this batch.
// With Batch.PerSource the next batch of the source waits for that, to keep their order. Messages that
// failed, or have a BatchResult.Then, go on by themselves. Each message is acked or nacked here, and
// the envelope is always acked.
func (w *route) batch(msg *message.Message) ([]*message.Message, error) {
	b := &batch{route: w, Batch: envelope.Open(msg), ctx: msg.Context()}
	b.at.Store(&pipeline.Origin{})
	end := b.abandon
	defer func() { end() }()
	accepted := b.handleWatched()
	all := b.outputs(accepted)
	if len(all) == 0 {
		b.succeed(accepted)
		return nil, nil
	}
	publish := func() {
		defer b.abandon()
		b.at.Store(&all[0].of[0].from.Origin)
		returned := b.watched()
		defer returned()
		b.publishOutputs(all)
		b.succeed(accepted)
	}
	end = func() { b.Go(publish) }
	if w.Batch.PerSource {
		end = publish
	}
	return nil, nil
}

// watched reports a batch that takes longer than the longest hold until returned is called.
func (b *batch) watched() (returned func()) {
	if b.hold <= 0 {
		return func() {}
	}
	return b.stuck.watch(b.route, func() pipeline.Origin { return *b.at.Load() }, b.Release)
}

// handleWatched passes the messages through the middlewares before the handler, and calls it with
// those that are left. One longest hold is the limit of all of it.
func (b *batch) handleWatched() (accepted []*delivery) {
	returned := b.watched()
	defer returned()
	b.all = make([]delivery, 0, len(b.Messages))
	accepted = make([]*delivery, 0, len(b.Messages))
	for _, msg := range b.Messages {
		n := len(b.all)
		d := &b.all[:n+1][n]
		b.begin(d, msg)
		b.all = b.all[:n+1]
		if !d.from.MayStart() {
			d.left, d.err = true, errNotHeld
			b.end(d)
			continue
		}
		if b.admitWith(d) {
			d.correlation = correlationOf(d.passed.Message)
			accepted = append(accepted, d)
		}
	}
	if len(accepted) > 0 {
		b.metrics.batchRecords.Observe(float64(len(accepted)))
		b.handle(accepted)
	}
	return accepted
}

// begin prepares a message. Each begin is followed by one end.
func (b *batch) begin(d *delivery, m envelope.Message) {
	d.msg, d.outer, d.payload, d.received, d.err = m.Message, m.Context(), m.Payload, m.Received, errUnsettled
	d.from = pipeline.DeliveryFrom(d.outer)
	b.at.Store(&d.from.Origin)
	d.span = b.startSpan(d.msg)
	d.inner = d.msg.Context()
	d.spent = spentBy(d.msg, b.retriers)
}

// apart runs f on a goroutine that f may end, and then returns ErrGoexit.
func (b *batch) apart(f func() error) error {
	err, ended := pipeline.ErrGoexit, make(chan struct{})
	b.Go(func() {
		defer close(ended)
		err = f()
	})
	<-ended
	return err
}

// handle calls the handler. If the call breaks, each half is handled again. One message may be the
// cause, and must not make dead letters of the others.
func (b *batch) handle(ds []*delivery) {
	b.at.Store(&ds[0].from.Origin)
	results, err := b.call(ds)
	if len(ds) > 1 && (pipeline.Class(err) == pipeline.ClassPanic || errors.Is(err, errResults) || errors.Is(err, pipeline.ErrGoexit)) {
		for _, d := range ds {
			d.passed.restore()
		}
		b.handle(ds[:len(ds)/2])
		b.handle(ds[len(ds)/2:])
		return
	}
	for i, d := range ds {
		if errors.Is(err, pipeline.ErrGoexit) {
			b.leaveUnsettled(d)
			continue
		}
		if err != nil {
			b.fail(d, err)
			continue
		}
		d.out = results[i].Out
		failed := results[i].Err
		if then := results[i].Then; then != nil {
			b.goOn(d, func() error { return b.alone(d.passed.Message, then) })
			continue
		}
		if failed == nil {
			failed = correlate(d.out, d.correlation)
		}
		if failed != nil {
			b.fail(d, failed)
		}
	}
}

// call calls the handler once, on a goroutine that the handler may end.
func (b *batch) call(ds []*delivery) ([]pipeline.BatchResult, error) {
	msgs := make([]*message.Message, len(ds))
	for i, d := range ds {
		msgs[i] = d.passed.Message
	}
	ctx, span := b.batchSpan(b.ctx, ds)
	started := time.Now()
	var results []pipeline.BatchResult
	err := b.apart(func() error {
		_, err := b.calling(message.NewMessageWithContext(ctx, "", nil), func(m *message.Message) ([]*message.Message, error) {
			results = b.HandleBatch(m.Context(), msgs)
			if len(results) != len(msgs) {
				return nil, pipeline.Permanent(fmt.Errorf("the handler of batches: %w: %d for %d messages", errResults, len(results), len(msgs)))
			}
			return nil, nil
		})
		return err
	})
	for _, d := range ds {
		d.passed.SetContext(d.passed.ctx) // as the step timeout does
	}
	observe(b.metrics.batchSeconds, time.Since(started), span)
	endCall(span, err)
	return results, err
}

// outputs returns the records of all messages that have not left, by output. It fails the messages
// that have records for no output of the route.
func (b *batch) outputs(ds []*delivery) (all []outbound) {
	for _, d := range ds {
		if d.left {
			continue
		}
		var err error
		if all, err = b.addOutputs(all, d.passed.Message, d.out, d); err != nil {
			b.fail(d, err)
		}
	}
	return all
}

// publishOutputs publishes to one output after the other. A message that fails is left out of those
// that follow.
func (b *batch) publishOutputs(all []outbound) {
	for i, o := range all {
		if i > 0 {
			o = o.where(func(d *delivery) bool { return !d.left })
		}
		if len(o.records) > 0 {
			b.at.Store(&o.of[0].from.Origin)
			b.failUnpublished(o, all[i:], b.publishTo(b.ctx, o))
		}
	}
}

// where returns those records of an output whose message is one that keep returns true for.
func (o outbound) where(keep func(*delivery) bool) outbound {
	some := outbound{name: o.name, sink: o.sink}
	for i, d := range o.of {
		if keep(d) {
			some.records, some.of = append(some.records, o.records[i]), append(some.of, d)
		}
	}
	return some
}

// succeed ends the messages that have not left.
func (b *batch) succeed(ds []*delivery) {
	for _, d := range ds {
		if !d.left {
			d.left = true
			d.err = b.settled(d, nil)
			b.end(d)
		}
	}
}

// failUnpublished fails the messages whose records for o were not published. rest are the records of
// this output and of those that follow.
func (b *batch) failUnpublished(o outbound, rest []outbound, err error) {
	var partial *pipeline.PartialError
	some := errors.As(err, &partial)
	// Such an error would make a dead letter of each message. It may be the fault of one record.
	each := len(o.of) > 1 && (pipeline.IsPermanent(err) || pipeline.Class(err) == pipeline.ClassPanic)
	for i, d := range o.of {
		switch {
		case err == nil, d.left:
		case some:
			if reason := partial.Failed[i]; reason != nil {
				b.fail(d, fmt.Errorf("publish to %s: %w", o.sink.Describe(), reason))
			}
		case each:
			b.goOn(d, func() error { return b.publishOwn(d, rest) })
		default:
			b.fail(d, err)
		}
	}
}

// publishOwn publishes the records of one message by themselves.
func (b *batch) publishOwn(d *delivery, all []outbound) error {
	var own []outbound
	for _, o := range all {
		if o = o.where(func(of *delivery) bool { return of == d }); len(o.records) > 0 {
			own = append(own, o)
		}
	}
	return b.publishAll(d.passed.Context(), own)
}

func (b *batch) fail(d *delivery, err error) { b.goOn(d, func() error { return err }) }

// goOn ends a message on a goroutine of its own, with the error of f.
func (b *batch) goOn(d *delivery, f func() error) {
	d.left = true
	b.Go(func() {
		defer b.end(d)
		d.err = b.settled(d, f())
	})
}

// settled decides about a message as the step failure does.
func (b *batch) settled(d *delivery, err error) error {
	d.msg.SetContext(d.inner)
	return b.settle(d.msg, d.payload, d.spent, err)
}

// leaveUnsettled ends a message whose goroutine has ended: it is nacked, as it would be alone.
func (b *batch) leaveUnsettled(d *delivery) {
	d.left = true
	b.end(d)
}

// abandon nacks the messages that are still here when the batch ends early.
func (b *batch) abandon() {
	for i := range b.all {
		if d := &b.all[i]; !d.left {
			b.end(d)
		}
	}
	for _, msg := range b.Messages[len(b.all):] {
		msg.Nack()
	}
}

// end acks or nacks a message.
func (b *batch) end(d *delivery) {
	d.msg.SetContext(d.outer)
	if errors.Is(d.err, errUnsettled) {
		b.count(d.msg, outcomeNacked, d.err)
	}
	if b.Activity != nil {
		b.Activity.Ended(d.from.Origin)
	}
	endSpan(d.span, d.err)
	b.metrics.end(d.received, d.span)
	if d.err == nil {
		d.msg.Ack()
	} else {
		d.msg.Nack()
	}
}
