package pipeline

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

func noopTracer() trace.TracerProvider { return noop.NewTracerProvider() }

var traceContext = propagation.TraceContext{}

// InjectTrace writes the trace context of ctx into a message's metadata (traceparent), which must
// not be nil.
func InjectTrace(ctx context.Context, metadata message.Metadata) {
	traceContext.Inject(ctx, propagation.MapCarrier(metadata))
}

// TraceOf returns the ids in a value of the header traceparent, as log lines have them, and nothing for one
// that is not valid: any producer may write the header.
func TraceOf(parent string) (traceID, spanID string) {
	ctx := traceContext.Extract(context.Background(), propagation.MapCarrier{MetaTraceParent: parent})
	at := trace.SpanContextFromContext(ctx)
	if !at.IsValid() {
		return "", ""
	}
	return at.TraceID().String(), at.SpanID().String()
}

// ExtractTrace returns ctx with the remote trace context found in m's metadata.
func ExtractTrace(ctx context.Context, m *message.Message) context.Context {
	if m.Metadata[MetaTraceParent] == "" {
		return ctx
	}
	return traceContext.Extract(ctx, propagation.MapCarrier(m.Metadata))
}
