package web

import (
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// ContinueTrace lets the trace of a caller go on, so that what the request causes is part of it. It is for
// services, because who may continue traces decides also which of them are kept. A request of anybody else
// begins a trace, which is linked to that of its headers.
func ContinueTrace() Option { return func(m *mount) { m.continues = true } }

// startSpan starts the server span of a request, and returns the request with it. A stream has none: it
// lasts as long as its page is open. The attributes follow the semantic conventions of OpenTelemetry. The
// path is not among them, because it may name a person.
func (p *Plugin) startSpan(m *mount, r *http.Request) (*http.Request, trace.Span) {
	if m.stream {
		return r, nil
	}
	route := m.pattern
	if _, path, hasMethod := strings.Cut(m.pattern, " "); hasMethod {
		route = path
	}
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.request.method", r.Method), attribute.String("http.route", route)),
	}
	ctx := r.Context()
	caller := propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	if m.continues {
		ctx = caller
	} else if link := trace.LinkFromContext(caller); link.SpanContext.IsValid() {
		options = append(options, trace.WithLinks(link))
	}
	ctx, span := p.tracer.Start(ctx, r.Method+" "+route, options...)
	return r.WithContext(ctx), span
}

// endSpan ends the span of a request, which may be nil, with the status of its answer. An answer that was cut
// off has failed, whatever its status.
func endSpan(span trace.Span, status int, cutOff bool) {
	if span == nil {
		return
	}
	span.SetAttributes(attribute.Int("http.response.status_code", status))
	kind := ""
	switch {
	case status >= http.StatusInternalServerError:
		kind = strconv.Itoa(status)
	case cutOff:
		kind = "cut_off"
	}
	if kind != "" {
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, "")
	}
	span.End()
}
