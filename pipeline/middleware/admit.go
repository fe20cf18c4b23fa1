package middleware

import (
	"context"
	"errors"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// passed is the message that the middlewares of a route with HandleBatch have passed on, as it was
// then. They return before the batch is handled, and may undo their changes when they do.
type passed struct {
	*message.Message // nil: they have passed on nothing
	ctx              context.Context
	payload          message.Payload
	metadata         message.Metadata
	twice            bool // they have passed on another message, too
}

// restore undoes what was done to the message's context and payload since.
func (p passed) restore() {
	p.SetContext(p.ctx)
	p.Payload = p.payload
}

// apply gives the message what it had when it was passed on. given is the context that the
// middlewares were called with. The message has the end of inner, and the values of what they derived.
func (p *passed) apply(given, inner context.Context) {
	if p.ctx == given {
		p.ctx = inner
	} else {
		p.ctx = valuesOf{inner, context.WithoutCancel(p.ctx)}
	}
	p.Metadata = p.metadata
	p.restore()
}

var (
	errPassedTwice = errors.New("the middlewares at the place received have passed on two messages for one, and a batch has one of each: " +
		"pass on one of them, or use a route with Handle")
	errContextReplaced = errors.New("a middleware at the place received replaced the message's context by one that is not derived from it: " +
		"derive it, and copy a message with CopyWithContext")
)

// admitWith passes a message through the middlewares before the handler, and reports whether it is
// in the batch. Otherwise they have ended it, or it failed.
func (b *batch) admitWith(d *delivery) bool {
	if err := refuse(b.Policy, d.from); err != nil {
		b.fail(d, err)
		return false
	}
	if b.admit == nil {
		d.passed = passed{Message: d.msg, ctx: d.inner, payload: d.msg.Payload}
		return true
	}
	ctx := context.WithValue(d.inner, passedKey{}, &d.passed)
	d.msg.SetContext(ctx)
	err := b.apart(func() error {
		out, err := b.stepRecover(d.msg, b.admit)
		if err == nil && len(out) > 0 {
			err = pipeline.Permanent(errOutputsLost)
		}
		if err == nil && d.passed.twice {
			err = pipeline.Permanent(errPassedTwice)
		}
		return err
	})
	switch {
	case errors.Is(err, pipeline.ErrGoexit):
		b.leaveUnsettled(d)
	case err != nil:
		b.fail(d, err)
	case d.passed.Message == nil:
		b.succeed([]*delivery{d})
	default:
		d.passed.apply(ctx, d.inner)
		return true
	}
	return false
}

type passedKey struct{}

// admitted is what the middlewares at PlaceReceived call on a route with HandleBatch.
func admitted(msg *message.Message) ([]*message.Message, error) {
	p, ok := msg.Context().Value(passedKey{}).(*passed)
	if !ok {
		return nil, pipeline.Permanent(errContextReplaced)
	}
	p.twice = p.twice || p.Message != nil && p.Message != msg
	p.Message, p.ctx, p.payload, p.metadata = msg, msg.Context(), msg.Payload, maps.Clone(msg.Metadata)
	return nil, nil
}

// valuesOf is a context with the values of another one. A middleware that has given a context to its
// message may have cancelled it when it returned.
type valuesOf struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (c valuesOf) Value(key any) any { return c.values.Value(key) }
