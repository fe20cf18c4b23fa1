package telemetry_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/plugins/telemetry"
)

const (
	tracedProcess  = "MILLRACE_TEST_TRACED"   // what otlp_endpoint is, "-" for none
	refusedProcess = "telemetry test refused" // begins standard error if the variables are refused
)

// TestMain is also the process of a test, because the SDK reads the variables of its process.
func TestMain(m *testing.M) {
	endpoint := os.Getenv(tracedProcess)
	if endpoint == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := traceAsProcess(strings.TrimPrefix(endpoint, "-")); err != nil {
		fmt.Fprintln(os.Stderr, refusedProcess+":", err)
		os.Exit(1)
	}
}

// traceAsProcess makes a trace of its own, and a span in a trace whose sender has it kept.
func traceAsProcess(endpoint string) error {
	p := telemetry.New()
	c := telemetry.DefaultConfig()
	c.OTLPEndpoint = endpoint
	*p.Settings().(*telemetry.Config) = c
	ctx := context.Background()
	provider, flush, err := p.Tracing(ctx, "mill-7", "v1.2.3")
	if err != nil {
		return err
	}
	_, own := provider.Tracer("test").Start(ctx, "own trace")
	own.End()
	sender := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true})
	_, joined := provider.Tracer("test").Start(trace.ContextWithRemoteSpanContext(ctx, sender), "joined trace")
	joined.End()
	return flush(ctx)
}

// TestStandardVariables: each of OpenTelemetry's variables does what its specification says, and wins over the setting.
func TestStandardVariables(t *testing.T) {
	t.Parallel()
	const url = "URL" // of the collector
	both := []string{"own trace", "joined trace"}
	for name, c := range map[string]struct {
		setting string
		env     []string
		path    string   // that spans arrive at; empty: none arrive
		has     []string // in what arrives
		lacks   []string
		console []string // in standard error
	}{
		"no variable and no setting":    {},
		"the setting alone":             {setting: url, path: "/v1/traces", has: both},
		"the endpoint alone":            {env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url}, path: "/v1/traces", has: append(both, "millrace", "mill-7", "v1.2.3")},
		"an endpoint with a path":       {env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url + "/tenant/"}, path: "/tenant/v1/traces", has: both},
		"an endpoint of traces":         {env: []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + url + "/as/it/is", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, path: "/as/it/is", has: both},
		"the endpoint wins":             {setting: "http://127.0.0.1:1", env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url}, path: "/v1/traces", has: both},
		"an empty variable is none":     {setting: url, env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=", "OTEL_TRACES_EXPORTER=", "OTEL_TRACES_SAMPLER="}, path: "/v1/traces", has: both},
		"the exporter none":             {setting: url, env: []string{"OTEL_TRACES_EXPORTER=none"}},
		"the exporter otlp":             {setting: url, env: []string{"OTEL_TRACES_EXPORTER=otlp"}, path: "/v1/traces", has: both},
		"the exporter console":          {setting: url, env: []string{"OTEL_TRACES_EXPORTER=console"}, console: append(both, "mill-7")},
		"both exporters":                {setting: url, env: []string{"OTEL_TRACES_EXPORTER=otlp, console"}, path: "/v1/traces", has: both, console: both},
		"disabled":                      {setting: url, env: []string{"OTEL_SDK_DISABLED=TRUE", "OTEL_TRACES_EXPORTER=otlp", "OTEL_TRACES_SAMPLER=sometimes"}},
		"disabled takes only true":      {setting: url, env: []string{"OTEL_SDK_DISABLED=1"}, path: "/v1/traces", has: both},
		"the sampler always_off":        {setting: url, env: []string{"OTEL_TRACES_SAMPLER=always_off"}},
		"a sampler based on the parent": {setting: url, env: []string{"OTEL_TRACES_SAMPLER=parentbased_always_off"}, path: "/v1/traces", has: []string{"joined trace"}, lacks: []string{"own trace"}},
		"a sampler with an argument":    {setting: url, env: []string{"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0"}, path: "/v1/traces", has: []string{"joined trace"}, lacks: []string{"own trace"}},
		"the service's name":            {setting: url, env: []string{"OTEL_SERVICE_NAME=winter-shop"}, path: "/v1/traces", has: append(both, "winter-shop", "mill-7")},
		"attributes of the resource":    {setting: url, env: []string{"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=stage,service.version=v9"}, path: "/v1/traces", has: append(both, "deployment.environment.name", "stage", "service.version\x12\x04\n\x02v9"), lacks: []string{"service.version\x12\b\n\x06v1.2.3"}},
		"headers":                       {setting: url, env: []string{"OTEL_EXPORTER_OTLP_HEADERS=X-Test=tenant-a"}, path: "/v1/traces", has: append(both, "X-Test: tenant-a")},
		"spans as JSON":                 {setting: url, env: []string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}, path: "/v1/traces", has: append(both, "Content-Type: application/json")},
		"the protocol of traces":        {setting: url, env: []string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"}, path: "/v1/traces", has: append(both, "Content-Type: application/x-protobuf")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			collector := newCollector(t)
			fill := func(s string) string { return strings.ReplaceAll(s, url, collector.URL) }
			environ := make([]string, len(c.env))
			for i, e := range c.env {
				environ[i] = fill(e)
			}
			said, err := traced(t, fill(c.setting), environ...)
			require.NoError(t, err, said)
			path, body := collector.received()
			require.Equal(t, c.path, path)
			for _, want := range c.has {
				require.Contains(t, body, want)
			}
			for _, other := range c.lacks {
				require.NotContains(t, body, other)
			}
			for _, want := range c.console {
				require.Contains(t, said, want)
			}
			if c.console == nil {
				require.Empty(t, said)
			}
		})
	}
}

// TestStandardVariablesAreChecked: what the SDK would replace by a default, and only mention, ends the start.
func TestStandardVariablesAreChecked(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"OTEL_TRACES_EXPORTER=zipkin":                          `OTEL_TRACES_EXPORTER: must be otlp, console, none or a list of them, got "zipkin"`,
		"OTEL_TRACES_EXPORTER=otlp,none":                       `OTEL_TRACES_EXPORTER: none must stand alone, got "otlp,none"`,
		"OTEL_EXPORTER_OTLP_ENDPOINT=ann:p4ss@collector:4318":  `OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL such as http://127.0.0.1:4318`,
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://":           `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be a URL such as http://127.0.0.1:4318`,
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                     `OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf or http/json, because spans are sent over HTTP (port 4318 of a collector), got "grpc"`,
		"OTEL_TRACES_SAMPLER=sometimes":                        `OTEL_TRACES_SAMPLER: must be always_on, always_off, traceidratio, or one of these after parentbased_, got "sometimes"`,
		"OTEL_TRACES_SAMPLER_ARG=2":                            `OTEL_TRACES_SAMPLER_ARG: must be from 0 to 1, got "2"`,
		"OTEL_TRACES_SAMPLER_ARG=NaN":                          `OTEL_TRACES_SAMPLER_ARG: must be from 0 to 1, got "NaN"`,
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name": "telemetry: resource attributes: ",
	} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			said, err := traced(t, "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER=traceidratio", env)
			require.Error(t, err)
			require.True(t, strings.HasPrefix(said, refusedProcess), said)
			require.Contains(t, said, want)
			require.NotContains(t, said, "p4ss")
		})
	}
}

// traced runs traceAsProcess in a process with these variables, and returns what it writes to standard error.
func traced(t *testing.T, endpoint string, environ ...string) (said string, err error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	if endpoint == "" {
		endpoint = "-"
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append([]string{tracedProcess + "=" + endpoint}, environ...)
	var out bytes.Buffer
	cmd.Stderr = &out
	err = cmd.Run()
	return out.String(), err
}
