package sse

import (
	"context"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

const (
	defaultDrainWindow = 10 * time.Second
	drainStep          = 20 * time.Millisecond
	// drainSpread is the part of the window, in percent, over which streams are closed. The last
	// ones need the rest to end.
	drainSpread = 90
	warnEvery   = 10 * time.Second
)

// Plugin has the hubs of a process. It must be before the plugins that use it in the list of
// plugins, and before the plugin of the HTTP server.
type Plugin struct {
	config  Config
	metrics metrics
	hubs    map[string]*Hub
	window  time.Duration
	log     *slog.Logger
}

// New returns the plugin without hubs.
func New() *Plugin {
	return &Plugin{
		config: defaultConfig(), metrics: newMetrics(), hubs: map[string]*Hub{}, window: defaultDrainWindow,
		log: slog.New(slog.DiscardHandler),
	}
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "sse" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Silence is the time without any event after which a client takes its stream as lost: one late or
// missing heartbeat is no loss.
func (p *Plugin) Silence() time.Duration { return 2*p.config.Heartbeat + lateHeartbeat }

// Register implements pipeline.Plugin.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log = r.Env().Logger.With(slog.String(logs.Plugin, p.Name()))
	r.Collect(p.metrics.collectors()...)
	r.Service(p.Name(), &service{plugin: p})
	return nil
}

// Hub returns the hub of a name, which is its label in metrics. Call it in Register.
func (p *Plugin) Hub(name string) *Hub {
	h := p.hubs[name]
	if h == nil {
		h = &Hub{plugin: p, name: name, metrics: p.metrics.of(name), sampled: logs.NewThrottle(warnEvery)}
		for i := range h.clients {
			h.clients[i] = map[*Client]struct{}{}
		}
		p.hubs[name] = h
	}
	return h
}

// DrainOver sets the time over which a drain closes the streams. The default is 10s. Call it in
// Register.
func (p *Plugin) DrainOver(window time.Duration) { p.window = window }

// service sends the heartbeats and ends the streams.
type service struct {
	loop.Group
	plugin *Plugin
	tick   int
}

// Start starts the heartbeats.
func (s *service) Start(ctx context.Context) error {
	return s.Group.Start(ctx, func(ctx context.Context) {
		loop.Every(ctx, s.plugin.config.Heartbeat/heartbeatBuckets, func(context.Context) {
			for _, h := range s.plugin.hubs {
				h.beat(s.tick % heartbeatBuckets)
			}
			s.tick++
		})
	})
}

// Drain refuses new streams and closes the open ones, evenly over the window. It returns when all
// have ended, or after the window: the HTTP server then closes the connections that hang.
func (s *service) Drain(ctx context.Context) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.plugin.window)
	defer cancel()
	deadline, _ := ctx.Deadline()
	spread := deadline.Sub(begin) * drainSpread / 100

	clients, closed := s.plugin.drain(), 0
	closeUntil := func(due int) {
		for ; closed < due; closed++ {
			clients[closed].Close(reasonDraining)
		}
	}
	for s.plugin.open() > 0 {
		due := len(clients)
		if elapsed := time.Since(begin); elapsed < spread {
			due = int(int64(len(clients)) * int64(elapsed) / int64(spread))
		}
		closeUntil(due)
		if !loop.Sleep(ctx, drainStep) {
			closeUntil(len(clients)) // a busy process may not have come to them
			s.plugin.log.InfoContext(ctx, "streams have not ended", slog.Int("streams", s.plugin.open()))
			break
		}
	}
	return nil
}

// drain refuses new streams and returns the open ones.
func (p *Plugin) drain() (open []*Client) {
	for _, h := range p.hubs {
		open = append(open, h.drain()...)
	}
	return open
}

// open returns the number of open streams.
func (p *Plugin) open() (n int) {
	for _, h := range p.hubs {
		n += h.open()
	}
	return n
}

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Drainer      = (*service)(nil)
)
