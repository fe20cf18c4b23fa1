package logs

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// Attribute keys of the trace that a line belongs to, as OpenTelemetry names them outside of its own format.
const (
	traceID = "trace_id"
	spanID  = "span_id"
)

// WithTrace returns a handler that adds the ids of the trace and the span in the context of a line, if there is one.
func WithTrace(h slog.Handler) slog.Handler { return traced{h} }

type traced struct{ slog.Handler }

// Handle implements slog.Handler.
func (t traced) Handle(ctx context.Context, r slog.Record) error {
	if at := trace.SpanContextFromContext(ctx); at.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String(traceID, at.TraceID().String()), slog.String(spanID, at.SpanID().String()))
	}
	return t.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (t traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{t.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (t traced) WithGroup(name string) slog.Handler { return traced{t.Handler.WithGroup(name)} }
