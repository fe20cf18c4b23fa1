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

// Topics makes sinks of topics; plugins/kafka is one.
type Topics interface {
	Sink(topic string) pipeline.Sink
}

// Streams makes sinks of Redis streams; plugins/redis is one.
type Streams interface {
	Sink(stream string) pipeline.Sink
}

// Plugin brings dead letters to their topics and into the store, and replays them.
type Plugin struct {
	config    Config
	topics    Topics
	streams   Streams
	replayers map[string]Replayer // by plugin
	store     atomic.Pointer[store.Store]
	log       *slog.Logger
	sampler   *logSampler
	metrics   *metrics
}

// New returns the plugin with default settings. kafka has the dead-letter topics. Replays publish
// to topics of kafka and to streams of redis; either may be nil.
func New(kafka Topics, redis Streams) *Plugin {
	p := &Plugin{
		config:    DefaultConfig(),
		topics:    kafka,
		streams:   redis,
		replayers: map[string]Replayer{},
		log:       slog.New(slog.DiscardHandler),
		metrics:   newMetrics(),
	}
	p.sampler = newLogSampler(p)
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "deadletter" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Needs implements pipeline.Dependent. Redis is needed only for replays to its streams.
func (p *Plugin) Needs() []string { return []string{"kafka"} }

// Register implements pipeline.Plugin. A plugin with an outbox registers its relay itself.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log = r.Env().Logger.With(slog.String(pipeline.LogPlugin, p.Name()))
	r.Service("deadletter.store", &storeService{plugin: p, schemas: r.Env().Schemas, count: true})
	p.sampler = newLogSampler(p) // a service runs once, and a plugin may be registered again
	r.Service("deadletter.log", p.sampler)
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
