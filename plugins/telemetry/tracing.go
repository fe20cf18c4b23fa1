package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-io/millrace/pipeline/logs"
)

const tracesPath = "/v1/traces"

// Tracing implements app.Tracer, which is called after the settings were decoded. flush sends the
// remaining spans and ends the provider. instance names the process in traces
// (service.instance.id). Without an endpoint the provider does nothing. Spans that the collector
// refuses are dropped: tracing never delays a message.
func (p *Plugin) Tracing(ctx context.Context, instance string) (provider trace.TracerProvider, flush func(context.Context) error, err error) {
	cfg := p.config
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
	sdk := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&reporting{SpanExporter: exporter, plugin: p}),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio))),
		sdktrace.WithResource(who),
	)
	return sdk, sdk.Shutdown, nil
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
	plugin *Plugin
	bad    atomic.Bool
}

// ExportSpans implements sdktrace.SpanExporter. It is never called concurrently.
func (r *reporting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := r.SpanExporter.ExportSpans(ctx, spans)
	wasBad := r.bad.Swap(err != nil)
	if err != nil {
		r.plugin.exports.Inc()
	}
	switch log := r.plugin.log.Load(); {
	case err != nil && !wasBad:
		log.Warn("spans are dropped: the collector does not take them",
			slog.String("endpoint", r.plugin.config.OTLPEndpoint), logs.Err(err))
	case err == nil && wasBad:
		log.Info("the collector takes spans again")
	}
	return nil
}
