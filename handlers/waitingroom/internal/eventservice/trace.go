package eventservice

import (
	"context"
	"errors"
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// startSpan starts the client span of a call, which the Event Service continues. Streams of users have no
// span, and neither has the loop that fetches capacities, so most calls begin a trace. The path
// stays out of the span, because anybody who enters chooses the event in it.
func (c *client) startSpan(ctx context.Context) (context.Context, trace.Span) {
	attrs := []attribute.KeyValue{attribute.String("http.request.method", "GET")}
	if u, err := url.Parse(c.base); err == nil {
		attrs = append(attrs, attribute.String("server.address", u.Hostname()))
		if port, err := strconv.Atoi(u.Port()); err == nil {
			attrs = append(attrs, attribute.Int("server.port", port))
		}
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
