package telemetry_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// collector takes what OTLP exporters send.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	path   string
	header http.Header
	got    bytes.Buffer
	status int
}

func newCollector(t *testing.T) *collector {
	c := &collector{status: http.StatusOK}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.path, c.header = r.URL.Path, r.Header
		_, err := io.Copy(&c.got, r.Body)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(c.status)
	}))
	t.Cleanup(c.Close)
	return c
}

// received returns where the last request went, and its headers with the bodies of all.
func (c *collector) received() (path, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var header strings.Builder
	if err := c.header.Write(&header); err != nil {
		return "", err.Error()
	}
	return c.path, header.String() + c.got.String()
}

func (c *collector) answer(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

func tracing(t *testing.T, c telemetry.Config) (trace.TracerProvider, func(context.Context) error, error) {
	p := telemetry.New()
	*p.Settings().(*telemetry.Config) = c
	return p.Tracing(t.Context(), "mill-7", "v1.2.3")
}

func TestTracing(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	provider, flush, err := tracing(t, telemetry.Config{
		OTLPEndpoint: c.URL, SampleRatio: 1, ServiceName: "mill",
	})
	require.NoError(t, err)

	// A trace that crosses a record stays one trace.
	ctx, publish := provider.Tracer("test").Start(t.Context(), "publish record")
	record := message.NewMessage("1", nil)
	pipeline.InjectTrace(ctx, record.Metadata)
	publish.End()
	_, handle := provider.Tracer("test").Start(pipeline.ExtractTrace(context.Background(), record), "handle record")
	require.Equal(t, publish.SpanContext().TraceID(), handle.SpanContext().TraceID())
	handle.End()

	require.NoError(t, flush(t.Context()))
	path, body := c.received()
	require.Equal(t, "/v1/traces", path)
	for _, want := range []string{"publish record", "handle record", "service.name", "mill", "service.instance.id", "mill-7", "service.version", "v1.2.3"} {
		require.Contains(t, body, want)
	}
}

func TestSampling(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	provider, flush, err := tracing(t, telemetry.Config{
		OTLPEndpoint: c.URL + "/own/path", SampleRatio: 0, ServiceName: "mill",
	})
	require.NoError(t, err)
	_, own := provider.Tracer("test").Start(t.Context(), "own trace")
	own.End()
	sender := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true})
	_, joined := provider.Tracer("test").Start(trace.ContextWithRemoteSpanContext(t.Context(), sender), "joined trace")
	joined.End()
	require.NoError(t, flush(t.Context()))
	path, body := c.received()
	require.Equal(t, "/own/path", path)
	require.Contains(t, body, "joined trace", "the sender's decision is kept")
	require.NotContains(t, body, "own trace")
}

func TestTracingOff(t *testing.T) {
	t.Parallel()
	provider, flush, err := telemetry.New().Tracing(t.Context(), "mill-7", "v1.2.3")
	require.NoError(t, err)
	_, span := provider.Tracer("test").Start(t.Context(), "x")
	require.False(t, span.IsRecording())
	require.NoError(t, flush(t.Context()))
}

// TestCollectorAway: spans that no collector takes are dropped, logged once and counted.
func TestCollectorAway(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	c.answer(http.StatusBadRequest) // an answer that isn't tried again
	p := telemetry.New()
	settings(t, p).OTLPEndpoint = strings.Replace(c.URL, "http://", "http://hidden@", 1) + "?token=hidden"
	settings(t, p).Listen = "127.0.0.1:0"
	provider, flush, err := p.Tracing(t.Context(), "mill-7", "v1.2.3")
	require.NoError(t, err)
	logged := &pipelinetest.Buffer{}
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(logged, nil)), Tracer: provider}, p)
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.NoError(t, rt.StartServices(t.Context()))
	defer func() { require.NoError(t, rt.Stop(context.Background())) }()

	export := func() {
		_, span := reg.Env().Tracer.Tracer("test").Start(t.Context(), "x")
		span.End()
		flusher, ok := provider.(interface{ ForceFlush(context.Context) error })
		require.True(t, ok)
		require.NoError(t, flusher.ForceFlush(t.Context()))
	}
	export()
	export()
	_, metrics := get(t, "http://"+p.Addr()+"/metrics")
	require.Contains(t, metrics, "millrace_telemetry_export_failures_total 2")
	require.Equal(t, 1, strings.Count(logged.String(), "spans are dropped"), logged.String())
	require.Contains(t, logged.String(), "endpoint="+c.URL+"/v1/traces ")
	require.NotContains(t, logged.String(), "hidden")

	c.answer(http.StatusOK)
	export()
	require.Equal(t, 1, strings.Count(logged.String(), "takes spans again"), logged.String())

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.NoError(t, flush(ctx))
}
