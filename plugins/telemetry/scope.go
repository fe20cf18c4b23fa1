package telemetry

import (
	"context"
	"slices"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// scoped gives each scope without a version that of the build, because whoever makes a tracer does not know it.
type scoped struct {
	*sdktrace.TracerProvider
	version string
}

// Tracer implements trace.TracerProvider.
func (s scoped) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	if c := trace.NewTracerConfig(options...); c.InstrumentationVersion() == "" {
		options = append(slices.Clone(options), trace.WithInstrumentationVersion(s.version))
	}
	return scopedTracer{s.TracerProvider.Tracer(name, options...), s}
}

type scopedTracer struct {
	trace.Tracer
	provider scoped
}

// Start implements trace.Tracer. The provider of the span is that of the tracer: packages make theirs of the span that
// they find in a context.
func (t scopedTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := t.Tracer.Start(ctx, name, options...)
	span = scopedSpan{span, t.provider}
	return trace.ContextWithSpan(ctx, span), span
}

type scopedSpan struct {
	trace.Span
	provider scoped
}

// TracerProvider implements trace.Span.
func (s scopedSpan) TracerProvider() trace.TracerProvider { return s.provider }
