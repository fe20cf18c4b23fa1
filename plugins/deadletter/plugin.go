package deadletter

import (
	"log/slog"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/cli"
	"github.com/millrace-io/millrace/plugins/deadletter/store"
)

// Transport makes sinks of its topics or streams. If it is a pipeline.Plugin, a replay starts it.
type Transport interface {
	// Kind is that of the origins of its messages.
	Kind() string
	Sink(name string) pipeline.Sink
}

// Plugin brings dead letters to their topics and into the store, and replays them.
type Plugin struct {
	config     Config
	topics     Transport
	transports map[string]Transport // by kind, for replays
	replayers  map[string]Replayer  // by plugin
	store      atomic.Pointer[store.Store]
	log        *slog.Logger
	relayed    *pipeline.SampledLog[groupKey, store.DeadLetter]
	metrics    *metrics
}

// New returns the plugin with default settings. topics has the dead-letter topics. Replays publish
// to topics and to others.
func New(topics Transport, others ...Transport) *Plugin {
	p := &Plugin{
		config:     DefaultConfig(),
		topics:     topics,
		transports: map[string]Transport{topics.Kind(): topics},
		replayers:  map[string]Replayer{},
		log:        slog.New(slog.DiscardHandler),
		metrics:    newMetrics(),
	}
	for _, t := range others {
		p.transports[t.Kind()] = t
	}
	p.relayed = pipeline.NewSampledLog(logInterval, p.logRelayed)
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "deadletter" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Needs implements pipeline.Dependent. The other transports are needed only for replays.
func (p *Plugin) Needs() []string {
	if topics, ok := p.topics.(pipeline.Plugin); ok {
		return []string{topics.Name()}
	}
	return nil
}

// Register implements pipeline.Plugin. A plugin with an outbox registers its relay itself.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log = r.Env().Logger.With(slog.String(pipeline.LogPlugin, p.Name()))
	r.Service("deadletter.store", &storeService{plugin: p, schemas: r.Env().Schemas, count: true})
	// A service runs once, and a plugin may be registered again.
	p.relayed = pipeline.NewSampledLog(logInterval, p.logRelayed)
	r.Service("deadletter.log", p.relayed)
	r.Collect(p.metrics.collectors()...)
	return nil
}

// Schemas implements pipeline.Migratable.
func (p *Plugin) Schemas(env pipeline.Env) []pipeline.Schema {
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	return []pipeline.Schema{p.schema(env.Logger)}
}

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	return []*cobra.Command{cli.Command(h, cli.Env{
		Register: p.registerStore,
		Store:    p.store.Load,
		Replayer: func(running *app.Running) cli.Replayer { return newReplays(p, running) },
	})}
}

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Dependent    = (*Plugin)(nil)
	_ pipeline.Migratable   = (*Plugin)(nil)
	_ app.Commander         = (*Plugin)(nil)
)
