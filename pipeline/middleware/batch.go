package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

var (
	errResults = errors.New("wrong number of results")
	errAround  = errors.New("Options.Around returned messages on a route with HandleBatch")
)

// batch is the messages of an envelope in the chain of their route.
type batch struct {
	*route
	pipeline.Envelope
	ctx context.Context
	all []delivery
}

// batch passes the messages of an envelope through the chain: together through HandleBatch and the
// publishing, each by itself through the rest. It returns when the next batch may take its place.
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
		w.begin(d, msg.Message, msg.At)
		b.all = b.all[:n+1]
		if !pipeline.Held(d.outer) {
			d.left, d.err = true, errNotHeld
			b.end(d)
			continue
		}
		if d.refused != nil {
			b.fail(d, d.refused)
			continue
		}
		d.correlation = correlationOf(d.msg)
		accepted = append(accepted, d)
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
			d.msg.Payload = d.payload
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
			b.goOn(d, func() error { return b.route.handle(d, then) })
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
	c := &batchCall{make([]*message.Message, len(ds)), make([]pipeline.BatchResult, len(ds))}
	for i, d := range ds {
		c.msgs[i] = d.msg
	}
	ctx, span := b.batchSpan(context.WithValue(b.ctx, batchCallKey{}, c), ds)
	started := time.Now()
	var out []*message.Message
	err, ended := pipeline.ErrGoexit, make(chan struct{})
	b.Go(func() {
		defer close(ended)
		out, err = b.limited(message.NewMessageWithContext(ctx, "", nil), b.route.call, false)
	})
	<-ended
	b.metrics.batchSeconds.Observe(time.Since(started).Seconds())
	if len(out) > 0 {
		err = errors.Join(err, pipeline.Permanent(errAround))
	}
	endSpan(span, err)
	return c.results, err
}

// batchCall is in the context of a call for a batch.
type batchCall struct {
	msgs    []*message.Message
	results []pipeline.BatchResult
}

type batchCallKey struct{}

// callBatch returns the call for a batch as a handler of the envelope, for Options.Around.
func callBatch(h pipeline.BatchHandler) message.HandlerFunc {
	return func(envelope *message.Message) ([]*message.Message, error) {
		c := envelope.Context().Value(batchCallKey{}).(*batchCall)
		results := h(envelope.Context(), c.msgs)
		if len(results) != len(c.msgs) {
			return nil, pipeline.Permanent(fmt.Errorf("the handler of batches: %w: %d for %d messages", errResults, len(results), len(c.msgs)))
		}
		c.results = results
		return nil, nil
	}
}

// outputs returns the records of all messages that have not left, and the message of each record.
func (b *batch) outputs(ds []*delivery) (records []*message.Message, of []*delivery) {
	for _, d := range ds {
		if !d.left {
			records = b.records(records, d, d.out)
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
			b.settle(d, nil)
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
			b.goOn(d, func() error { return b.route.publish(d, d.out) })
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
		b.settle(d, f())
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
	b.route.end(d)
	if d.err == nil {
		d.msg.Ack()
	} else {
		d.msg.Nack()
	}
}
