package telemetry

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/reach"
)

// Plugin is the operations server and the tracing of a process. Put it first in the list of
// plugins: it then answers while the others start, and until they have stopped. The handlers of
// other plugins are served from the start of all services until the drain begins. Otherwise the
// answer is 503.
type Plugin struct {
	config  Config
	log     atomic.Pointer[slog.Logger] // spans may be exported before Register
	exports prometheus.Counter
	server  *server
}

// New returns the plugin with default settings.
func New() *Plugin {
	p := &Plugin{
		config: defaultConfig(),
		exports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_telemetry_export_failures_total",
			Help: "Batches of spans that the collector did not take; they are dropped.",
		}),
	}
	p.log.Store(slog.New(slog.DiscardHandler))
	p.server = &server{
		plugin: p, failed: make(chan error, 1), readTimeout: readTimeout,
		connections: httpserver.NewConnections("millrace_telemetry"), requests: httpserver.Requests{WriteStall: writeStall},
	}
	p.server.served, p.server.end = context.WithCancel(context.Background())
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "telemetry" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Register implements pipeline.Plugin. The server collects the handlers and metrics of all plugins
// when it starts.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log.Store(r.Env().Logger.With(slog.String(logs.Plugin, p.Name())))
	p.server.registry = r
	r.Collect(append(p.server.connections.Collectors(), p.exports)...)
	for pattern, h := range p.server.own() {
		r.HTTP(pattern, h)
	}
	if p.config.Pprof {
		r.Endpoint(pipeline.UseOperations, pipeline.Endpoint{Kind: pipeline.KindHTTP, Name: pprofPath})
	}
	if to, err := exportOf(p.config, os.Getenv); err == nil && to.otlp { // Tracing has returned the error
		reach.Servers{Name: "traces", URL: to.endpoint.String(), Client: exportClient(os.Getenv), Optional: true}.Register(r)
	}
	r.Service(p.Name(), p.server)
	r.Offer(p) // it is an operate.Examined, an operate.ConditionReader, an operate.Checking and a console.Contributor
	return nil
}

// Addr returns where the operations server listens, host:port; empty while it doesn't.
func (p *Plugin) Addr() string { return p.server.addr() }

// Announce returns the operations server's address (app.Announcer).
func (p *Plugin) Announce() map[string]string {
	addr := p.Addr()
	if addr == "" {
		return nil
	}
	return map[string]string{"operations": "http://" + addr}
}

var _ pipeline.Configurable = (*Plugin)(nil)
