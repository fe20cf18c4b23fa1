package middleware

import (
	"context"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-io/millrace/pipeline"
)

// Attributes of spans, by the semantic conventions of OpenTelemetry for messaging, and two of our own. A span
// has no key of a record and no text of an error, because both may name a person.
const (
	attrSystem        = "messaging.system"
	attrOperation     = "messaging.operation.name"
	attrOperationType = "messaging.operation.type"
	attrDestination   = "messaging.destination.name"
	attrTemplate      = "messaging.destination.template"
	attrPartition     = "messaging.destination.partition.id"
	attrGroup         = "messaging.consumer.group.name"
	attrOffset        = "messaging.kafka.offset"
	attrMessageID     = "messaging.message.id"
	attrBatch         = "messaging.batch.message_count"
	attrErrorType     = "error.type"
	attrOrigin        = "millrace.origin"
	attrOutcome       = "millrace.outcome"

	opProcess, opSend = "process", "send"
)

// stepTrace is the step trace: the span of a message covers its retry record and dead letter too.
func (w *route) stepTrace(msg *message.Message, next message.HandlerFunc) (out []*message.Message, err error) {
	outer, span := msg.Context(), w.startSpan(msg)
	err = errUnsettled
	defer func() {
		if span.IsRecording() {
			outer = trace.ContextWithSpan(outer, span) // for the exemplar of the step metrics
		}
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
		span.SetAttributes(w.placeOf(pipeline.DeliveryFrom(outer).Origin)...)
	}
	msg.SetContext(ctx)
	return span
}

// placeOf says where a message came from. The position is SOURCE/PARTITION@OFFSET or SOURCE@ID.
func (w *route) placeOf(o pipeline.Origin) []attribute.KeyValue {
	attrs := append(operation(w.from.Kind, opProcess),
		attribute.String(attrDestination, o.Source), attribute.String(attrOrigin, o.String()))
	if w.from.Name != o.Source { // one route reads many streams
		attrs = append(attrs, attribute.String(attrTemplate, w.from.Name))
	}
	if o.Group != "" {
		attrs = append(attrs, attribute.String(attrGroup, o.Group))
	}
	place, at, _ := strings.Cut(strings.TrimPrefix(o.Position, o.Source), "@")
	partition, partitioned := strings.CutPrefix(place, "/")
	offset, err := strconv.ParseInt(at, 10, 64)
	switch {
	case partitioned && err == nil:
		attrs = append(attrs, attribute.String(attrPartition, partition), attribute.Int64(attrOffset, offset))
	case !partitioned && at != "":
		attrs = append(attrs, attribute.String(attrMessageID, at))
	}
	return attrs
}

// operation returns the attributes that every span of a transport has.
func operation(kind, name string) []attribute.KeyValue {
	switch kind {
	case "redis-stream", "elastic-streams", "watermill-redisstream":
		kind = "redis"
	}
	return []attribute.KeyValue{
		attribute.String(attrSystem, kind), attribute.String(attrOperation, name), attribute.String(attrOperationType, name),
	}
}

// markOutcome says in the span of a message what became of it. The message may be acked and have failed all the same:
// its retry record or dead letter then goes on.
func markOutcome(span trace.Span, outcome string, err error) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String(attrOutcome, outcome))
	if err != nil {
		class := pipeline.Class(err)
		span.SetAttributes(attribute.String(attrErrorType, class))
		span.SetStatus(codes.Error, class)
	}
}

// endSpan ends the span of a message, which is nacked if there is an error.
func endSpan(span trace.Span, err error) {
	if err != nil {
		markOutcome(span, outcomeNacked, err)
	}
	span.End()
}

// endCall ends the span of a call for several messages.
func endCall(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		class := pipeline.Class(err)
		span.SetAttributes(attribute.String(attrErrorType, class))
		span.SetStatus(codes.Error, class)
	}
	span.End()
}

// batchSpan returns the context of a call for a batch. It is in the span of the message when there
// is only one. For several messages it has a span of its own, linked to those that are sampled.
func (w *route) batchSpan(ctx context.Context, ds []*delivery) (context.Context, trace.Span) {
	if len(ds) == 1 {
		return trace.ContextWithSpan(ctx, ds[0].span), noop.Span{}
	}
	links := linksTo(ds)
	if len(links) == 0 {
		return ctx, noop.Span{}
	}
	return w.tracer.Start(ctx, "batch "+w.Name, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...),
		trace.WithAttributes(operation(w.from.Kind, opProcess)...),
		trace.WithAttributes(attribute.String(attrDestination, w.from.Name), attribute.Int(attrBatch, len(ds))))
}

// linksTo returns links to the messages that are sampled, one for each. Those of one message stand together.
func linksTo(ds []*delivery) (links []trace.Link) {
	for i, d := range ds {
		if d.span.IsRecording() && (i == 0 || d != ds[i-1]) {
			links = append(links, trace.Link{SpanContext: d.span.SpanContext()})
		}
	}
	return links
}

// sendSpan starts the producer span of records. They continue the trace in it, if they belong to one message: they are
// the chain's own. The records of several messages, which are in links, stay in the spans of these.
func (c *Chain) sendSpan(ctx context.Context, to pipeline.Endpoint, links []trace.Link, records ...*message.Message) (context.Context, trace.Span) {
	if !trace.SpanFromContext(ctx).IsRecording() && len(links) == 0 {
		return ctx, noop.Span{}
	}
	ctx, span := c.tracer.Start(ctx, "send "+to.Name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithLinks(links...),
		trace.WithAttributes(operation(to.Kind, opSend)...), trace.WithAttributes(attribute.String(attrDestination, to.Name)))
	if len(records) > 1 {
		span.SetAttributes(attribute.Int(attrBatch, len(records)))
	}
	if len(links) > 0 {
		return trace.ContextWithSpan(ctx, nil), span
	}
	for _, r := range records {
		pipeline.InjectTrace(ctx, r.Metadata)
	}
	return ctx, span
}
