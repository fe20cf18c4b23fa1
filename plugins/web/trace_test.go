package web_test

import (
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/plugins/web"
)

func TestSpansOfRequests(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	r := startTraced(t, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)), func(s *site) {
		s.web.Handle("GET /orders/{id}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(trace.SpanContextFromContext(r.Context()).TraceID().String()))
		}))
		s.web.Handle("POST /orders", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(trace.SpanContextFromContext(r.Context()).TraceID().String()))
		}), web.ContinueTrace())
		s.web.Handle("GET /panic", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("it breaks") }))
		s.web.Handle("GET /half", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("half"))
			_ = http.NewResponseController(w).Flush()
			panic("it breaks later")
		}))
		s.web.Handle("GET /stream", text("x"), web.Stream())
		s.web.Handle("GET /users", text("x"))
		s.web.Handle("GET /refused", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	})
	const theirs = "0af7651916cd43dd8448eb211c80319c"
	header := []string{"Traceparent", "00-" + theirs + "-b7ad6b7169203331-01"}

	got := r.send("GET", "/orders/someone", header...)
	own := spans.Ended()[0]
	require.Equal(t, own.SpanContext().TraceID().String(), got.body, "what the handler causes is in the trace")
	require.NotEqual(t, theirs, got.body, "a stranger does not decide which traces are kept")
	require.False(t, own.Parent().IsValid())
	require.Equal(t, theirs, own.Links()[0].SpanContext.TraceID().String())
	require.Equal(t, "GET /orders/{id}", own.Name())
	require.Equal(t, trace.SpanKindServer, own.SpanKind())
	require.ElementsMatch(t, []attribute.KeyValue{
		attribute.String("http.request.method", "GET"), attribute.String("http.route", "/orders/{id}"), attribute.Int("http.response.status_code", 200),
	}, own.Attributes(), "no path")

	require.Equal(t, theirs, r.send("POST", "/orders", header...).body)
	require.Equal(t, theirs, spans.Ended()[1].Parent().TraceID().String())

	require.Equal(t, http.StatusInternalServerError, r.send("GET", "/panic").status)
	failed := spans.Ended()[2]
	require.Equal(t, codes.Error, failed.Status().Code)
	require.Contains(t, failed.Attributes(), attribute.String("error.type", "500"))

	traced := failed.SpanContext().TraceID()
	require.Regexp(t, `msg="http handler panicked".*trace_id=`+traced.String(), r.log.String())
	require.Eventually(t, func() bool { // it is written after the answer
		return regexp.MustCompile(`msg=request .*trace_id=` + traced.String()).MatchString(r.log.String())
	}, time.Minute, time.Millisecond)

	half := r.open("GET", "/half")
	_, err := io.ReadAll(half.Body)
	require.Error(t, err)
	require.NoError(t, half.Body.Close())
	require.Eventually(t, func() bool { return len(spans.Ended()) == 4 }, time.Minute, time.Millisecond)
	require.Contains(t, spans.Ended()[3].Attributes(), attribute.String("error.type", "cut_off"))

	r.send("GET", "/stream")
	r.send("GET", "/nothing")
	r.send("GET", "/users")
	require.Len(t, spans.Ended(), 5, "streams and unknown paths have none")
	require.Equal(t, "GET /users", spans.Ended()[4].Name())
	require.Empty(t, spans.Ended()[4].Links())

	r.send("GET", "/refused")
	refused := spans.Ended()[5]
	require.Equal(t, codes.Unset, refused.Status().Code, "the fault is the client's")
	require.Contains(t, refused.Attributes(), attribute.Int("http.response.status_code", http.StatusNotFound))
}
