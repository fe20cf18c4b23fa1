package waitingroom

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/millrace-io/millrace/pipeline"
)

// With traces on, the Event Service gets that of each call.
func TestTheEventServiceContinuesATrace(t *testing.T) {
	t.Parallel()
	parents := make(chan string, 100)
	events := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parents <- r.Header.Get("Traceparent")
		fmt.Fprint(w, `{"seatCount":5}`)
	}))
	t.Cleanup(events.Close)
	spans := tracetest.NewSpanRecorder()
	o := startOperated(t, time.Second, func(c *config, env *pipeline.Env) {
		c.EventService.URL = events.URL
		env.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	})
	require.NoError(t, o.rooms.Create(t.Context(), "42"))
	got := <-parents
	require.Eventually(t, func() bool {
		for _, span := range spans.Ended() {
			if got == "00-"+span.SpanContext().TraceID().String()+"-"+span.SpanContext().SpanID().String()+"-01" {
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond, "a span of ours is the parent, got %q", got)
}
