package deadletter

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Transport makes sinks of its topics or streams. If it is a pipeline.Plugin, a replay starts it.
type Transport interface {
	// Kind is that of the origins of its messages.
	Kind() string
	Sink(name string) pipeline.Sink
}

// Streams is a Transport that can have dead letters itself.
type Streams interface {
	Transport
	// CappedSink is Sink for a stream that keeps about the newest messages, up to a number of them and
	// of their bytes.
	CappedSink(stream string, atMost, atMostBytes int) pipeline.Sink
	// Each calls each for the messages of a stream, oldest first, with the id of the entry. A
	// stream that does not exist has none. The transport need not be started.
	Each(ctx context.Context, stream string, each func(id string, m *message.Message) error) error
	// Delete deletes entries of a stream. The transport need not be started.
	Delete(ctx context.Context, stream string, ids ...string) error
}

// Plugin brings dead letters to their topics and into the store, and replays them.
type Plugin struct {
	config     Config
	topics     Transport
	transports map[string]Transport // by kind, for replays
	streams    Streams              // nil: no dead letters in streams
	sinks      map[string]bool      // dead-letter topics (false) and streams (true) of sinks
	store      atomic.Pointer[store.Store]
	serving    atomic.Bool   // the services of the process run, and not only those of a command
	copying    chan struct{} // has a value while a use copies the dead-letter streams
	copyRead   atomic.Bool   // a use has read the copy that a command has made at its start
	copyWithin time.Duration // of a further copy of a command
	log        *slog.Logger
	relayed    *logs.Sampled[groupKey, store.DeadLetter]
	metrics    *metrics
}

// New returns the plugin with default settings. topics has the dead-letter topics, and the first of
// others that implements Streams has the dead-letter streams. Replays publish to topics and others.
func New(topics Transport, others ...Transport) *Plugin {
	p := &Plugin{
		config:     defaultConfig(),
		topics:     topics,
		transports: map[string]Transport{topics.Kind(): topics},
		sinks:      map[string]bool{},
		log:        slog.New(slog.DiscardHandler),
		metrics:    newMetrics(),
		copying:    make(chan struct{}, 1),
	}
	for _, t := range others {
		p.transports[t.Kind()] = t
		if s, ok := t.(Streams); ok && p.streams == nil {
			p.streams = s
		}
	}
	p.relayed = logs.NewSampled(logInterval, p.logRelayed)
	return p
}

// StoreIn gives the plugin the drivers of its store, sqldb.Databases, and returns the plugin. Without
// them the setting store.dsn must be empty, and the commands on dead-letter streams are refused, but a
// binary requires no driver.
func (p *Plugin) StoreIn(drivers portable.Databases) *Plugin {
	p.config.drivers = drivers
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "deadletter" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Register implements pipeline.Plugin. A plugin with an outbox registers its relay itself.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log = r.Env().Logger.With(slog.String(logs.Plugin, p.Name()))
	r.Service("deadletter.store", &storeService{plugin: p, schemas: r.Env().Schemas, count: true, registry: r})
	// A service runs once, and a plugin may be registered again.
	p.relayed = logs.NewSampled(logInterval, p.logRelayed)
	r.Service("deadletter.log", p.relayed)
	r.Collect(p.metrics.collectors()...)
	r.Offer(waiting{p})
	r.Offer(p)
	if p.config.drivers != nil { // without them a store is a mistake in the settings
		for _, schema := range p.Schemas(r.Env()) {
			r.Offer(schema) // it is an operate.Examined
		}
	}
	return nil
}

// Schemas implements pipeline.Migratable.
func (p *Plugin) Schemas(env pipeline.Env) []migration.Schema {
	if p.config.Store.DSN.IsZero() {
		return nil
	}
	return []migration.Schema{p.schema(env.Logger)}
}

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	return []*cobra.Command{cli.Command(h, p.commandDeps())}
}

// Operations implements operate.Operated. The same reports and actions work in the process of a command
// and in one that runs routes.
func (p *Plugin) Operations() operate.Operations {
	deps := p.commandDeps()
	return operate.Operations{Reports: []operate.Report{deps.List()}, Actions: deps.Actions()}
}

func (p *Plugin) commandDeps() cli.Deps {
	return cli.Deps{
		Register: p.registerStore,
		Open:     p.openForUse,
		Replayer: func(reg *pipeline.Registry) cli.Replayer { return newReplays(p, reg) },
	}
}

// waiting counts the stored dead letters of a plugin.
type waiting struct{ p *Plugin }

// WaitingByRoute implements operate.DeadLetters. It opens the store for itself unless it is open.
func (w waiting) WaitingByRoute(ctx context.Context) (counts map[string]int64, ok bool, err error) {
	if w.p.config.Store.DSN.IsZero() {
		return nil, false, nil
	}
	open := w.p.store.Load()
	if open == nil {
		own, openErr := w.p.openStore(ctx, migration.MatchSchemas)
		if openErr != nil {
			return nil, false, openErr
		}
		defer func() { err = errors.Join(err, own.Close()) }()
		open = own
	}
	counts, err = open.WaitingByHandler(ctx)
	return counts, err == nil, err
}

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Migratable   = (*Plugin)(nil)
	_ app.Commander         = (*Plugin)(nil)
	_ operate.Operated      = (*Plugin)(nil)
	_ operate.DeadLetters   = waiting{}
)
