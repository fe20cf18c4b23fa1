package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// Tracing implements app.Tracer, which is called after the settings were decoded. flush sends the
// remaining spans and ends the provider. instance and version describe the process in traces
// (service.instance.id, service.version). The standard variables of OpenTelemetry win over the
// settings, and an error names the one that can't be used. The provider does nothing without an
// endpoint, unless OTEL_TRACES_EXPORTER names an exporter. Spans that the collector refuses are
// dropped: tracing never delays a message.
func (p *Plugin) Tracing(ctx context.Context, instance, version string) (provider trace.TracerProvider, flush func(context.Context) error, err error) {
	to, err := exportOf(p.config, os.Getenv)
	if err != nil {
		return nil, nil, err
	}
	if !to.otlp && !to.console {
		return noop.NewTracerProvider(), func(context.Context) error { return nil }, nil
	}
	who, err := identity(ctx, p.config, instance, version)
	if err != nil {
		return nil, nil, err
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(who)}
	if to.sampler != nil {
		options = append(options, sdktrace.WithSampler(to.sampler))
	}
	if to.otlp {
		var client []otlptracehttp.Option
		if !to.fromVariable {
			client = append(client, otlptracehttp.WithEndpointURL(to.endpoint.String()))
		}
		exporter, err := otlptracehttp.New(ctx, client...)
		if err != nil {
			return nil, nil, fmt.Errorf("telemetry: otlp exporter: %w", err)
		}
		shown := url.URL{Scheme: to.endpoint.Scheme, Host: to.endpoint.Host, Path: to.endpoint.Path} // the rest may be secret
		options = append(options, sdktrace.WithBatcher(&reporting{SpanExporter: exporter, plugin: p, endpoint: shown.String()}))
	}
	if to.console {
		options = append(options, sdktrace.WithBatcher(spanWriter{os.Stderr}))
	}
	sdk := sdktrace.NewTracerProvider(options...)
	return sdk, sdk.Shutdown, nil
}

// identity describes the process in traces. OTEL_RESOURCE_ATTRIBUTES adds to it and wins.
func identity(ctx context.Context, cfg Config, instance, version string) (*resource.Resource, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("telemetry: host name: %w", err)
	}
	who, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", cfg.ServiceName),
			attribute.String("service.version", version),
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
	plugin   *Plugin
	endpoint string // as log lines name it
	bad      atomic.Bool
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
			slog.String("endpoint", r.endpoint), logs.Err(httpclient.WithoutURL(err)))
	case err == nil && wasBad:
		log.Info("the collector takes spans again")
	}
	return nil
}

// spanWriter writes each span as one line of JSON, for developers. It does what the exporter stdouttrace of OpenTelemetry
// does, which is a module of its own.
type spanWriter struct{ out io.Writer }

// ExportSpans implements sdktrace.SpanExporter. It is never called concurrently.
func (c spanWriter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	lines := json.NewEncoder(c.out)
	for _, span := range tracetest.SpanStubsFromReadOnlySpans(spans) {
		if err := lines.Encode(span); err != nil {
			return fmt.Errorf("telemetry: write a span: %w", err)
		}
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (spanWriter) Shutdown(context.Context) error { return nil }
