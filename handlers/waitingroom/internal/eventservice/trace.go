package eventservice

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline/httpclient"
)

// startSpan starts the client span of a call, which the Event Service continues. Streams of users have no
// span, and neither has the loop that fetches capacities, so most calls begin a trace. The path
// stays out of the span, because anybody who enters chooses the event in it.
func (c *client) startSpan(ctx context.Context) (context.Context, trace.Span) {
	var attrs []attribute.KeyValue
	if u, err := url.Parse(c.base); err == nil {
		attrs = httpclient.SpanAttributes(http.MethodGet, u)
	}
	return c.tracer.Start(ctx, "event_service seats", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
}

// endSpan ends the span of a call. That there is no such event is an answer, and no error.
func endSpan(span trace.Span, err error) {
	if err != nil && !errors.Is(err, ErrNoEvent) {
		kind := resultOf(0, err)
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, kind)
	}
	span.End()
}
