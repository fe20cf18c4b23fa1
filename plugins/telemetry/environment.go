package telemetry

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/millrace-io/millrace/pipeline/httpclient"
)

// The variables of OpenTelemetry that are read here, because the SDK for Go ignores them or falls back to a default
// without an error. The SDK and its exporter read all others about traces.
const (
	envDisabled       = "OTEL_SDK_DISABLED"
	envExporters      = "OTEL_TRACES_EXPORTER"
	envEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	envTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envProtocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	envTracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	envSampler        = "OTEL_TRACES_SAMPLER"
	envSamplerArg     = "OTEL_TRACES_SAMPLER_ARG"
)

// Values of OTEL_TRACES_EXPORTER.
const (
	exporterOTLP    = "otlp"
	exporterConsole = "console"
	exporterNone    = "none"
)

const (
	tracesPath      = "/v1/traces"
	defaultEndpoint = "http://localhost:4318" // of the specification
)

// export says where spans go. The zero value: nowhere.
type export struct {
	otlp, console bool
	// endpoint is where otlp sends. With fromVariable the exporter reads it itself.
	endpoint     *url.URL
	fromVariable bool
	// sampler is that of the settings. Nil: the SDK reads its variable.
	sampler sdktrace.Sampler
}

// exportOf lays the variables over the settings: one that is set and not empty wins over the setting for the same
// thing. getenv is os.Getenv. The error names the variable that can't be used.
func exportOf(cfg Config, getenv func(string) string) (export, error) {
	value := func(name string) string { return strings.TrimSpace(getenv(name)) }
	if strings.EqualFold(value(envDisabled), "true") {
		return export{}, nil
	}
	e, err := endpointOf(cfg, value)
	if err != nil {
		return export{}, err
	}
	if err := e.choose(value(envExporters)); err != nil {
		return export{}, err
	}
	if e.otlp {
		if err := checkProtocol(value); err != nil {
			return export{}, err
		}
	}
	e.sampler, err = samplerOf(cfg, value)
	return e, err
}

// endpointOf returns the endpoint, that of the specification without any.
func endpointOf(cfg Config, value func(string) string) (e export, err error) {
	for _, name := range []string{envTracesEndpoint, envEndpoint} {
		address := value(name)
		if address == "" {
			continue
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return e, fmt.Errorf("telemetry: %s: must be a URL such as http://127.0.0.1:4318", name) // the value is not repeated: it may hold a password
		}
		return export{otlp: true, endpoint: u, fromVariable: true}, nil
	}
	e.otlp = cfg.OTLPEndpoint != ""
	address := cfg.OTLPEndpoint
	if !e.otlp {
		address = defaultEndpoint
	}
	if e.endpoint, err = url.Parse(address); err != nil {
		return e, fmt.Errorf("telemetry: otlp_endpoint: %w", err)
	}
	if e.endpoint.Path == "" || e.endpoint.Path == "/" {
		e.endpoint.Path = tracesPath
	}
	return e, nil
}

// choose takes the exporters that the list names. Empty: otlp if there is an endpoint.
func (e *export) choose(list string) error {
	if list == "" {
		return nil
	}
	e.otlp = false
	names := strings.Split(list, ",")
	for _, name := range names {
		switch name = strings.TrimSpace(name); name {
		case exporterOTLP:
			e.otlp = true
		case exporterConsole:
			e.console = true
		case exporterNone:
		default:
			return fmt.Errorf("telemetry: %s: must be %s, %s, %s or a list of them, got %q", envExporters, exporterOTLP, exporterConsole, exporterNone, name)
		}
	}
	if len(names) > 1 && slices.ContainsFunc(names, func(name string) bool { return strings.TrimSpace(name) == exporterNone }) {
		return fmt.Errorf("telemetry: %s: %s must stand alone, got %q", envExporters, exporterNone, list)
	}
	return nil
}

// checkProtocol refuses gRPC, which the exporter would replace by HTTP without a word.
func checkProtocol(value func(string) string) error {
	for _, name := range []string{envTracesProtocol, envProtocol} {
		switch protocol := value(name); protocol {
		case "":
			continue
		case "http/protobuf", "http/json":
			return nil
		default:
			return fmt.Errorf("telemetry: %s: must be http/protobuf or http/json, because spans are sent over HTTP (port 4318 of a collector), got %q", name, protocol)
		}
	}
	return nil
}

// exportClient returns the certificates of the exporter, which it reads from its variables itself.
func exportClient(getenv func(string) string) httpclient.Config {
	file := func(of string) string {
		return cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_"+of), getenv("OTEL_EXPORTER_OTLP_"+of))
	}
	return httpclient.Config{CAFile: file("CERTIFICATE"), CertFile: file("CLIENT_CERTIFICATE"), KeyFile: file("CLIENT_KEY")}
}

// samplerOf returns the sampler of the settings, nil if the variable names a valid one.
func samplerOf(cfg Config, value func(string) string) (sdktrace.Sampler, error) {
	ratio := false
	switch name := strings.ToLower(value(envSampler)); name {
	case "":
		return sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio)), nil
	case "traceidratio", "parentbased_traceidratio":
		ratio = true
	case "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
	default:
		return nil, fmt.Errorf("telemetry: %s: must be always_on, always_off, traceidratio, or one of these after parentbased_, got %q", envSampler, name)
	}
	if arg := value(envSamplerArg); ratio && arg != "" {
		if part, err := strconv.ParseFloat(arg, 64); err != nil || !(part >= 0 && part <= 1) {
			return nil, fmt.Errorf("telemetry: %s: must be from 0 to 1, got %q", envSamplerArg, arg)
		}
	}
	return nil, nil
}
