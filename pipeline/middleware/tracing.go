package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-io/millrace/pipeline"
)

// stepTrace is the step trace: the span of a message covers its retry record and dead letter too.
func (w *route) stepTrace(msg *message.Message, next message.HandlerFunc) (out []*message.Message, err error) {
	outer, span := msg.Context(), w.startSpan(msg)
	err = errUnsettled
	defer func() {
		msg.SetContext(outer)
		endSpan(span, err)
	}()
	return next(msg)
}

// startSpan starts the consumer span of a message. Its parent is the trace context in the metadata.
// The message gets a context with the span.
func (w *route) startSpan(msg *message.Message) trace.Span {
	outer := msg.Context()
	ctx, span := w.tracer.Start(pipeline.ExtractTrace(outer, msg), w.spanName, w.spanOptions...)
	if span.IsRecording() {
		o := pipeline.DeliveryFrom(outer)
		span.SetAttributes(
			attribute.String("messaging.system", w.from.Kind),
			attribute.String("messaging.destination.name", o.Source),
			attribute.String("messaging.consumer.group.name", o.Group),
			attribute.String("millrace.origin", o.String()),
		)
	}
	msg.SetContext(ctx)
	return span
}

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// batchSpan returns the context of a call for a batch. It is in the span of the message when there
// is only one. For several messages it has a span of its own, linked to those that are sampled.
func (w *route) batchSpan(ctx context.Context, ds []*delivery) (context.Context, trace.Span) {
	if len(ds) == 1 {
		return trace.ContextWithSpan(ctx, ds[0].span), noop.Span{}
	}
	var links []trace.Link
	for _, d := range ds {
		if d.span.IsRecording() {
			links = append(links, trace.Link{SpanContext: d.span.SpanContext()})
		}
	}
	if len(links) == 0 {
		return ctx, noop.Span{}
	}
	return w.tracer.Start(ctx, "batch "+w.Name, trace.WithLinks(links...))
}
