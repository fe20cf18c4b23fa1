package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/leftover"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

// Plugin is the plugin "redis". It owns the shared client, the instance's presence, and what operators order
// about routes and instances.
type Plugin struct {
	cfg       Config
	readers   *poll.Metrics
	published *pubsub.Metrics
	publish   *pubsub.Publisher
	trim      *trimmer
	shards    shardMetrics
	delays    *delays
	refused   prometheus.Gauge // followed streams
	orders    *routeOrders     // about routes
	levels    atomic.Pointer[logLevels]
	history   history // of the work of all instances

	mu       sync.Mutex
	env      pipeline.Env
	client   goredis.UniversalClient
	presence *presence
	remover  *leftover.Remover
	failed   chan error
	domains  map[string]*Domain // by prefix
	taken    bool               // another plugin reclaims from the domains
}

// New returns the plugin with its default settings. It opens no connection.
func New() *Plugin {
	p := &Plugin{
		cfg: DefaultConfig(), readers: poll.NewMetrics(), published: pubsub.NewMetrics(), shards: newShardMetrics(), delays: newDelays(), refused: newRefused(),
		failed: make(chan error, 1), domains: map[string]*Domain{},
	}
	p.env.Logger = slog.New(slog.DiscardHandler)
	p.publish = pubsub.NewPublisherOf(p.Client, pubsub.PublisherConfig{Metrics: p.published})
	p.trim = newTrimmer(&p.cfg)
	p.orders = &routeOrders{routes: p.routes}
	p.levels.Store(newLogLevels(nil, p.env.Logger))
	return p
}

// Name returns "redis".
func (p *Plugin) Name() string { return "redis" }

// Kind implements deadletter.Transport.
func (p *Plugin) Kind() string { return poll.Kind }

// Settings returns the plugin's *Config. Changes before the start of the service apply.
func (p *Plugin) Settings() any { return &p.cfg }

// Config returns a copy of the settings, which are final when plugins are registered. It is for
// plugins that stand on this one.
func (p *Plugin) Config() Config { return p.cfg }

// ReaderMetrics returns the registered metrics of readers, for readers of other plugins.
func (p *Plugin) ReaderMetrics() *poll.Metrics { return p.readers }

// Register adds the service "redis", its health check and collectors.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.mu.Lock()
	p.env = r.Env()
	p.mu.Unlock()
	p.delays.mu.Lock()
	p.delays.routes = r
	p.delays.mu.Unlock()
	r.Service(p.Name(), service{p})
	r.Health(p.Name(), p.check)
	r.Collect(p.collectors()...)
	r.Offer(p)
	r.ErrorClasses(pipeline.ErrorClass{
		Name: entry.ClassMissingMessage, Cause: "a stream entry without the field `message`",
		Action: "another program wrote it: find and fix that program; then discard",
	})
	return nil
}

// Client returns the shared client, or nil before the start of the service. The plugin closes it.
// After the end of the service the commands of a plugin that still runs fail.
func (p *Plugin) Client() goredis.UniversalClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// Fence is poll.Options.Fence by this instance's presence. It is in the future while other
// instances may take this one for dead, or another process has its name. After that it is the end
// of that time. Before the start of the service it is the zero time.
func (p *Plugin) Fence() time.Time {
	p.mu.Lock()
	pr := p.presence
	p.mu.Unlock()
	if pr == nil {
		return time.Time{}
	}
	return pr.fence(time.Now())
}

func (p *Plugin) log() *slog.Logger {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.env.Logger
}

func (p *Plugin) check(ctx context.Context) error {
	c := p.Client()
	if c == nil {
		return errors.New("redis: not started")
	}
	if err := pingAny(ctx, c); err != nil {
		return fmt.Errorf("redis at %s: %w", p.cfg.address(), err)
	}
	p.mu.Lock()
	pr := p.presence
	p.mu.Unlock()
	if pr == nil { // it stops
		return nil
	}
	return pr.lost(time.Now())
}

// pingAny returns when any primary of a Cluster answers. One dead node must not fail the check of
// all instances, because they make progress with the keys of the other nodes.
func pingAny(ctx context.Context, c goredis.UniversalClient) error {
	cluster, ok := c.(*goredis.ClusterClient)
	if !ok {
		return c.Ping(ctx).Err()
	}
	first := make(chan error, 1)
	put := func(err error) {
		select {
		case first <- err:
		default: // a node has answered
		}
	}
	go func() { // a silent node delays only this goroutine
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingBound)
		defer cancel()
		// The node that is read for the slots may be silent. Then the last known slots count.
		slots, end := context.WithTimeout(ctx, pingBound/4)
		defer end()
		put(cluster.ForEachMaster(slots, func(_ context.Context, node *goredis.Client) error {
			err := node.Ping(ctx).Err()
			if err == nil {
				put(nil)
			}
			return err
		}))
	}()
	return <-first
}

type service struct{ p *Plugin }

// Start waits for the server, checks eviction, rights and domains, acquires the instance's name, which
// fails when another live process has it, and reads the orders about routes. The error wraps
// pipeline.ErrUnavailable when ctx ends first or a right is missing. It is an app.ExitError when a
// domain has other shards or another group.
func (s service) Start(ctx context.Context) error {
	p := s.p
	p.mu.Lock()
	log, level, instance, version, drain, running := p.env.Logger, p.env.LogLevel, p.env.Instance, p.env.Version, p.env.Drain, p.presence != nil
	p.mu.Unlock()
	if running {
		return errors.New("redis: started twice")
	}
	c, err := open(ctx, p.cfg.ClientConfig, log, nil, append(probesOf(p.cfg.Domains), probeKey)...)
	if err != nil {
		return err
	}
	for _, stream := range p.delays.topics() {
		if err := checkRights(ctx, c, delayCommands(), dueKey(stream)); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	if err := guard(ctx, c, p.cfg.Domains); err != nil {
		return errors.Join(err, c.Close())
	}
	if instance == "" {
		instance = watermill.NewULID()
	}
	pr := &presence{c: c, instance: instance, version: version, ttl: presenceTTL, renew: PresenceRenewal, log: log, outage: logs.NewOutage(time.Minute, true), failed: p.failed}
	p.levels.Store(newLogLevels(level, log))
	levels := func(ctx context.Context) {
		p.levels.Load().follow(ctx, c, instance)
		if err := p.tell(ctx, c, pr); err != nil {
			log.DebugContext(ctx, "other instances do not know the state of this one", logs.Err(err))
		}
	}
	pr.then = func(ctx context.Context) {
		pr.followDrain(ctx, drain)
		p.orders.follow(ctx, c, log)
		levels(ctx)
		p.tellWork(ctx, c, log)
	}
	p.history.begin(time.Now())
	if err := pr.acquire(ctx); err != nil {
		return errors.Join(err, c.Close())
	}
	if err := poll.WithRemedy(p.orders.read(ctx, c, log)); err != nil { // a paused route must not start
		return errors.Join(err, pr.release(context.WithoutCancel(ctx)), c.Close())
	}
	levels(ctx)
	p.mu.Lock()
	p.client, p.presence, p.remover = c, pr, leftover.Start(c, log)
	p.mu.Unlock()
	p.trim.start(ctx, c, log)
	return nil
}

// Stop releases the name and closes the client. Readers and publishers were stopped before.
func (s service) Stop(ctx context.Context) error {
	p := s.p
	p.mu.Lock()
	c, pr, remover := p.client, p.presence, p.remover
	p.presence, p.remover = nil, nil
	p.mu.Unlock()
	if pr == nil {
		return nil
	}
	remover.Stop()
	p.trim.stop(ctx)
	p.levels.Load().stop()
	err := pr.release(ctx) // first, because others wait for the name
	ctx, cancel := context.WithTimeout(ctx, lastTold)
	defer cancel()
	p.tellWork(ctx, c, pr.log)
	return errors.Join(err, c.Close())
}

// Failed delivers an error when another process has acquired the instance's name.
func (s service) Failed() <-chan error { return s.p.failed }

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Failer       = service{}
)
