package logs_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline/logs"
)

func TestLinesNameTheirTrace(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(logs.WithTrace(slog.NewTextHandler(&out, nil))).With(slog.String("plugin", "kafka"))
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	log.InfoContext(ctx, "in a trace")
	require.Contains(t, out.String(), "plugin=kafka trace_id=01000000000000000000000000000000 span_id=0200000000000000\n")
	out.Reset()
	log.InfoContext(t.Context(), "outside")
	require.NotContains(t, out.String(), "trace_id")
}
