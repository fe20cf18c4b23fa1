package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
)

// trace runs the message in a consumer span whose parent is the trace context in its metadata.
func (c *Chain) trace(r pipeline.Route, next message.HandlerFunc) message.HandlerFunc {
	endpoint := r.From.Describe()
	name := "process " + r.Name
	return func(msg *message.Message) ([]*message.Message, error) {
		outer := msg.Context()
		o := pipeline.OriginFrom(outer)
		ctx, span := c.tracer.Start(pipeline.ExtractTrace(outer, msg), name, trace.WithSpanKind(trace.SpanKindConsumer))
		defer span.End()
		if span.IsRecording() {
			span.SetAttributes(
				attribute.String("messaging.system", endpoint.Kind),
				attribute.String("messaging.destination.name", o.Source),
				attribute.String("messaging.consumer.group.name", o.Group),
				attribute.String("millrace.origin", o.String()),
			)
		}
		msg.SetContext(ctx)
		out, err := next(msg)
		msg.SetContext(outer)
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		return out, err
	}
}
