package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

const tracesPath = "/v1/traces"

// NewTracerProvider returns a tracer provider with the settings cfg, for a process without the
// plugin. instance is its name (service.instance.id). flush sends the remaining spans and ends the
// provider. Without an endpoint it does nothing. Spans that the collector refuses are dropped:
// tracing never delays a message.
func NewTracerProvider(ctx context.Context, cfg Config, instance string) (provider trace.TracerProvider, flush func(context.Context) error, err error) {
	return newTracerProvider(ctx, cfg, instance, func(error, bool) {}, func() {})
}

func newTracerProvider(ctx context.Context, cfg Config, instance string, failed func(err error, first bool), works func()) (trace.TracerProvider, func(context.Context) error, error) {
	if cfg.OTLPEndpoint == "" {
		return noop.NewTracerProvider(), func(context.Context) error { return nil }, nil
	}
	endpoint, err := url.Parse(cfg.OTLPEndpoint)
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry: otlp_endpoint: %w", err)
	}
	if endpoint.Path == "" || endpoint.Path == "/" {
		endpoint.Path = tracesPath
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint.String()))
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry: otlp exporter: %w", err)
	}
	who, err := identity(ctx, cfg, instance)
	if err != nil {
		return nil, nil, err
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&reporting{SpanExporter: exporter, failed: failed, works: works}),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio))),
		sdktrace.WithResource(who),
	)
	return provider, provider.Shutdown, nil
}

// identity names the process in traces. OTEL_RESOURCE_ATTRIBUTES adds to it.
func identity(ctx context.Context, cfg Config, instance string) (*resource.Resource, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("telemetry: host name: %w", err)
	}
	who, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", cfg.ServiceName),
			attribute.String("service.instance.id", instance),
			attribute.String("host.name", host),
		),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("telemetry: resource attributes: %w", err)
	}
	return who, nil
}

// reporting logs failures. The global error handler of OpenTelemetry writes to standard error.
type reporting struct {
	sdktrace.SpanExporter
	failed func(err error, first bool)
	works  func()
	bad    atomic.Bool
}

// ExportSpans implements sdktrace.SpanExporter. It is never called concurrently.
func (r *reporting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := r.SpanExporter.ExportSpans(ctx, spans)
	switch wasBad := r.bad.Swap(err != nil); {
	case err != nil:
		r.failed(err, !wasBad)
	case wasBad:
		r.works()
	}
	return nil
}
