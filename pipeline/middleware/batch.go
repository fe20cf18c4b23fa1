package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
)

var errResults = errors.New("wrong number of results")

// delivery is one delivery of a message in a batch, on its way through the chain.
type delivery struct {
	msg         *message.Message
	outer       context.Context // of the transport
	origin      pipeline.Origin
	span        trace.Span
	received    time.Time
	payload     message.Payload // unchanged: a middleware or a handler may change the message
	admitted    message.Payload // what the handler is called with
	spent       history
	err         error // why it is nacked; nil: it is acked; errUnsettled until settle has ended
	correlation string
	out         []*message.Message
	left        bool // another goroutine has the message, or it has ended
}

// batch is the messages of an envelope in the chain of their route.
type batch struct {
	*route
	pipeline.Envelope
	ctx context.Context
	all []delivery
}

// batch passes the messages of an envelope through the chain: together through HandleBatch and the
// publishing, each by itself through the steps before them. It returns when the next batch may take its place.
// Outputs are published later, so that a slow sink delays only the messages of this batch. With
// Batch.PerSource the next batch of the source waits for that, to keep their order. Messages that
// failed, or have a BatchResult.Then, go on by themselves. Each message is acked or nacked
// here, and the envelope is always acked.
func (w *route) batch(envelope *message.Message) ([]*message.Message, error) {
	b := &batch{route: w, Envelope: pipeline.EnvelopeFrom(envelope.Context()), ctx: envelope.Context()}
	end := b.abandon
	defer func() { end() }()
	b.all = make([]delivery, 0, len(b.Messages))
	accepted := make([]*delivery, 0, len(b.Messages))
	for _, msg := range b.Messages {
		n := len(b.all)
		d := &b.all[:n+1][n]
		b.begin(d, msg)
		b.all = b.all[:n+1]
		if !pipeline.Held(d.outer) {
			d.left, d.err = true, errNotHeld
			b.end(d)
			continue
		}
		if b.admitWith(d) {
			d.admitted, d.correlation = d.msg.Payload, correlationOf(d.msg)
			accepted = append(accepted, d)
		}
	}
	if len(accepted) == 0 {
		return nil, nil
	}
	w.metrics.batchRecords.Observe(float64(len(accepted)))
	b.handleWatched(accepted)
	records, of := b.outputs(accepted)
	if len(records) == 0 {
		b.succeed(accepted)
		return nil, nil
	}
	publish := func() {
		defer b.abandon()
		b.failUnpublished(of, b.publishRecords(b.ctx, records))
		b.succeed(accepted)
	}
	end = func() { b.Go(publish) }
	if w.Batch.PerSource {
		end = publish
	}
	return nil, nil
}

// begin prepares a message. Each begin is followed by one end.
func (b *batch) begin(d *delivery, m pipeline.Received) {
	d.msg, d.outer, d.payload, d.received, d.err = m.Message, m.Context(), m.Payload, m.At, errUnsettled
	d.origin = pipeline.OriginFrom(d.outer)
	d.span = b.startSpan(d.msg)
	d.spent = spentBy(d.msg, b.retriers)
}

// admitWith passes a message through the middlewares before the handler, and reports whether it is
// in the batch. Otherwise they have ended it, or it failed.
func (b *batch) admitWith(d *delivery) bool {
	if err := refuse(b.Policy, d.origin); err != nil {
		b.fail(d, err)
		return false
	}
	if b.admit == nil {
		return true
	}
	inner, in := d.msg.Context(), false
	d.msg.SetContext(context.WithValue(inner, admittedKey{}, &in))
	out, err := b.recovering(d.msg, b.admit)
	d.msg.SetContext(inner)
	if err == nil && len(out) > 0 {
		err = pipeline.Permanent(errOutputsLost)
	}
	switch {
	case err != nil:
		b.fail(d, err)
	case !in:
		b.succeed([]*delivery{d})
	}
	return err == nil && in
}

// admitted is what the middlewares at PlaceReceived call on a route with HandleBatch.
func admitted(msg *message.Message) ([]*message.Message, error) {
	in, ok := msg.Context().Value(admittedKey{}).(*bool)
	if !ok {
		return nil, pipeline.Permanent(errors.New("a middleware at the place received replaced the message's context by one that is not derived from it"))
	}
	*in = true
	return nil, nil
}

type admittedKey struct{}

// handleWatched reports a handler whose calls for the batch take longer than the longest hold.
func (b *batch) handleWatched(ds []*delivery) {
	if b.hold > 0 {
		returned := b.stuck.watch(ds[0].outer, b.route, b.Release)
		defer returned()
	}
	b.handle(ds)
}

// handle calls the handler. If the call breaks, each half is handled again. One message may be the
// cause, and must not make dead letters of the others.
func (b *batch) handle(ds []*delivery) {
	results, err := b.call(ds)
	if len(ds) > 1 && (pipeline.Class(err) == pipeline.ClassPanic || errors.Is(err, errResults) || errors.Is(err, pipeline.ErrGoexit)) {
		for _, d := range ds {
			d.msg.Payload = d.admitted
		}
		b.handle(ds[:len(ds)/2])
		b.handle(ds[len(ds)/2:])
		return
	}
	for i, d := range ds {
		if errors.Is(err, pipeline.ErrGoexit) { // it stays unsettled, as it would alone
			d.left = true
			b.end(d)
			continue
		}
		if err != nil {
			b.fail(d, err)
			continue
		}
		d.out = results[i].Out
		failed := results[i].Err
		if then := results[i].Then; then != nil {
			b.goOn(d, func() error { return b.alone(d.msg, then) })
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
		msgs[i] = d.msg
	}
	ctx, span := b.batchSpan(b.ctx, ds)
	started := time.Now()
	var results []pipeline.BatchResult
	err, ended := pipeline.ErrGoexit, make(chan struct{})
	b.Go(func() {
		defer close(ended)
		_, err = b.recovering(message.NewMessageWithContext(ctx, "", nil), func(envelope *message.Message) ([]*message.Message, error) {
			return b.limiting(envelope, func(envelope *message.Message) ([]*message.Message, error) {
				results = b.HandleBatch(envelope.Context(), msgs)
				if len(results) != len(msgs) {
					return nil, pipeline.Permanent(fmt.Errorf("the handler of batches: %w: %d for %d messages", errResults, len(results), len(msgs)))
				}
				return nil, nil
			})
		})
	})
	<-ended
	b.metrics.batchSeconds.Observe(time.Since(started).Seconds())
	endSpan(span, err)
	return results, err
}

// outputs returns the records of all messages that have not left, and the message of each record.
func (b *batch) outputs(ds []*delivery) (records []*message.Message, of []*delivery) {
	for _, d := range ds {
		if !d.left {
			records = b.records(records, d.msg, d.out)
			for len(of) < len(records) {
				of = append(of, d)
			}
		}
	}
	return records, of
}

// succeed ends the messages that have not left.
func (b *batch) succeed(ds []*delivery) {
	for _, d := range ds {
		if !d.left {
			d.left = true
			d.err = b.settle(d.msg, d.payload, d.spent, nil)
			b.end(d)
		}
	}
}

// failUnpublished fails the messages whose records were not published.
func (b *batch) failUnpublished(of []*delivery, err error) {
	var partial *pipeline.PartialError
	some := errors.As(err, &partial)
	// Such an error would make a dead letter of each message. It may be the fault of one record.
	each := len(of) > 1 && (pipeline.IsPermanent(err) || pipeline.Class(err) == pipeline.ClassPanic)
	for i, d := range of {
		switch {
		case err == nil, d.left:
		case some:
			if reason := partial.Failed[i]; reason != nil {
				b.fail(d, fmt.Errorf("publish to %s: %w", b.To.Describe(), reason))
			}
		case each:
			b.goOn(d, func() error { return b.publish(d.msg, d.out) })
		default:
			b.fail(d, err)
		}
	}
}

func (b *batch) fail(d *delivery, err error) { b.goOn(d, func() error { return err }) }

// goOn ends a message on a goroutine of its own, with the error of f.
func (b *batch) goOn(d *delivery, f func() error) {
	d.left = true
	b.Go(func() {
		defer b.end(d)
		d.err = b.settle(d.msg, d.payload, d.spent, f())
	})
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
	if errors.Is(d.err, errUnsettled) {
		b.count(d.msg, outcomeNacked, d.err)
	}
	if b.Activity != nil {
		b.Activity.Ended(d.origin)
	}
	d.msg.SetContext(d.outer)
	endSpan(d.span, d.err)
	b.metrics.end(d.received)
	if d.err == nil {
		d.msg.Ack()
	} else {
		d.msg.Nack()
	}
}
