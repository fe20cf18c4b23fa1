package telemetry

import (
	"net"
	"net/url"
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the section plugins.telemetry. It is read when tracing and the service start.
type Config struct {
	// Listen is the address of the operations server, host:port; port 0 takes a free one. Empty: no
	// server.
	Listen string `yaml:"listen"`
	// Pprof adds /debug/pprof/. Clients of the server can then read memory and use CPU.
	Pprof bool `yaml:"pprof"`
	// CheckInterval is the time between the starts of two runs of a check of /readyz. A check
	// without a result for three intervals counts as failed.
	CheckInterval time.Duration `yaml:"check_interval"`
	// CheckTimeout bounds one run of a check; one that takes longer counts as failed.
	CheckTimeout time.Duration `yaml:"check_timeout"`
	// OTLPEndpoint is the collector that spans are sent to by OTLP over HTTP, such as
	// http://127.0.0.1:4318; without a path, /v1/traces. Empty: no traces. The variables
	// OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_ENDPOINT win.
	OTLPEndpoint string `yaml:"otlp_endpoint"`
	// SampleRatio is the part of the traces started here that is kept, 0 to 1. A message with a
	// trace context keeps the decision of its sender. OTEL_TRACES_SAMPLER wins.
	SampleRatio float64 `yaml:"sample_ratio"`
	// ServiceName names the process in traces. OTEL_SERVICE_NAME wins.
	ServiceName string `yaml:"service_name"`
}

// defaultConfig returns the settings of the README.
func defaultConfig() Config {
	return Config{Listen: "127.0.0.1:9464", CheckInterval: time.Second, CheckTimeout: 3 * time.Second, SampleRatio: 1, ServiceName: "millrace"}
}

// Validate reports all errors at once.
func (c *Config) Validate() error {
	var p setting.Problems
	_, port, err := net.SplitHostPort(c.Listen)
	p.Check(c.Listen == "" || err == nil && port != "", "listen", "must be host:port or empty, got %q", c.Listen)
	p.Positive("check_interval", c.CheckInterval)
	p.Positive("check_timeout", c.CheckTimeout)
	p.Check(c.CheckTimeout <= staleAfter*c.CheckInterval, "check_timeout", "must be at most %d times check_interval (%s), because an older result counts as failed, got %s",
		staleAfter, c.CheckInterval, c.CheckTimeout)
	u, err := url.Parse(c.OTLPEndpoint)
	p.Check(c.OTLPEndpoint == "" || err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https"), "otlp_endpoint",
		"must be a URL such as http://127.0.0.1:4318, or empty") // the value is not repeated: it may hold a password
	p.Check(c.SampleRatio >= 0 && c.SampleRatio <= 1, "sample_ratio", "must be from 0 to 1, got %v", c.SampleRatio)
	p.Check(c.ServiceName != "", "service_name", "must not be empty")
	return p.Err()
}
