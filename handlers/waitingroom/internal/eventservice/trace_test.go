package eventservice

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/handlers/waitingroom/demo/sim"
)

// The Event Service continues the trace of a call, which has a span whether its caller has one or not.
func TestTheTraceOfACallGoesOn(t *testing.T) {
	t.Parallel()
	seats := sim.New(map[string]int64{"42": 500})
	parents := make(chan string, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parents <- r.Header.Get("Traceparent")
		seats.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	config := DefaultConfig()
	config.URL = web.URL
	s, err := New(Options{Config: config, Log: slog.New(slog.DiscardHandler), Tracer: tracers})
	require.NoError(t, err)
	t.Cleanup(s.client.http.CloseIdleConnections)

	last := func() sdktrace.ReadOnlySpan {
		all := spans.Ended()
		span := all[len(all)-1]
		require.Equal(t, "00-"+span.SpanContext().TraceID().String()+"-"+span.SpanContext().SpanID().String()+"-01", <-parents)
		require.Equal(t, trace.SpanKindClient, span.SpanKind())
		return span
	}
	address, err := url.Parse(web.URL)
	require.NoError(t, err)
	port, err := strconv.Atoi(address.Port())
	require.NoError(t, err)
	want := []attribute.KeyValue{
		attribute.String("http.request.method", "GET"), attribute.String("server.address", "127.0.0.1"), attribute.Int("server.port", port),
	}
	with := func(more ...attribute.KeyValue) []attribute.KeyValue {
		return append(append([]attribute.KeyValue{}, want...), more...)
	}

	_, err = s.client.seats(t.Context(), "42")
	require.NoError(t, err)
	span := last()
	require.False(t, span.Parent().IsValid())
	require.ElementsMatch(t, with(attribute.Int("http.response.status_code", 200)), span.Attributes(), "no event")

	ctx, outer := tracers.Tracer("test").Start(t.Context(), "a request of a user")
	_, err = s.client.seats(ctx, "43")
	require.ErrorIs(t, err, ErrNoEvent)
	span = last()
	require.Equal(t, outer.SpanContext().SpanID(), span.Parent().SpanID())
	require.ElementsMatch(t, with(attribute.Int("http.response.status_code", 404)), span.Attributes())
	require.Equal(t, codes.Unset, span.Status().Code, "an answer")
	outer.End()

	seats.Set(sim.Unavailable)
	_, err = s.client.seats(t.Context(), "42")
	require.ErrorIs(t, err, ErrUnavailable)
	span = last()
	require.ElementsMatch(t, with(attribute.Int("http.response.status_code", 503), attribute.String("error.type", "failed")), span.Attributes())
	require.Equal(t, codes.Error, span.Status().Code)
}
