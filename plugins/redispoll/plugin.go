package redispoll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
)

// Plugin is the plugin "redis": it owns the client that everybody shares, and the instance's presence.
type Plugin struct {
	cfg     Config
	metrics *Metrics
	publish *batcher
	trim    *trimmer

	mu       sync.Mutex
	env      pipeline.Env
	client   redis.UniversalClient
	presence *presence
	sweeper  *sweeper
	failed   chan error
	domains  map[string]*Domain // by prefix
	taken    bool               // somebody reclaims from the domains
}

// New returns the plugin with its default settings. It opens no connection.
func New() *Plugin {
	p := &Plugin{cfg: DefaultConfig(), metrics: NewMetrics(), failed: make(chan error, 1), domains: map[string]*Domain{}}
	p.env.Logger = slog.New(slog.DiscardHandler)
	p.publish = newBatcher(p.Client, PublisherConfig{Metrics: p.metrics})
	p.trim = newTrimmer(&p.cfg, p.metrics)
	return p
}

// Name returns "redis".
func (p *Plugin) Name() string { return "redis" }

// Settings returns the plugin's *Config. What is changed before the service starts counts.
func (p *Plugin) Settings() any { return &p.cfg }

// Metrics returns the counters that the plugin registers, for readers of other plugins.
func (p *Plugin) Metrics() *Metrics { return p.metrics }

// Register adds the service "redis", its health check and collectors.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.mu.Lock()
	p.env = r.Env()
	p.mu.Unlock()
	r.Service(p.Name(), service{p})
	r.Health(p.Name(), p.check)
	r.Collect(p.metrics.Collectors()...)
	r.Collect(newPoolCollector(p.Client))
	return nil
}

// Client returns the shared client once the service was started, before that nil. The plugin closes it.
func (p *Plugin) Client() redis.UniversalClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// Fence is ReaderConfig.Fence by this instance's presence: while other instances may take it for dead, or another
// process has its name, it is a time to come: nothing is begun. After that it is when the presence was back. It is the zero time before the service starts.
func (p *Plugin) Fence() time.Time {
	p.mu.Lock()
	pr := p.presence
	p.mu.Unlock()
	if pr == nil {
		return time.Time{}
	}
	return pr.fence(time.Now())
}

func (p *Plugin) check(ctx context.Context) error {
	c := p.Client()
	if c == nil {
		return errors.New("redis: not started")
	}
	if err := c.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis at %s: %w", p.cfg.address(), err)
	}
	return nil
}

// service is the plugin's life.
type service struct{ p *Plugin }

// Start waits for the server, checks that it evicts nothing and that the user has all rights, and takes the instance's
// name. The error wraps ErrUnavailable when ctx ends first or a right is missing, ErrDuplicate when another process has
// the name.
func (s service) Start(ctx context.Context) error {
	p := s.p
	p.mu.Lock()
	log, instance, running := p.env.Logger, p.env.Instance, p.client != nil
	p.mu.Unlock()
	if running {
		return errors.New("redis: started twice")
	}
	c, err := NewClient(p.cfg.ClientConfig)
	if err != nil {
		return err
	}
	if instance == "" {
		instance = watermill.NewULID()
	}
	pr := &presence{c: c, instance: instance, ttl: presenceTTL, renew: presenceRenew, scripts: newScripts(), log: log, failed: p.failed}
	err = WaitFor(ctx, c, p.cfg.address(), log)
	if err == nil {
		err = CheckEviction(ctx, c, log)
	}
	if err == nil {
		err = CheckRights(ctx, c, probeKey)
	}
	if err == nil {
		err = pr.acquire(ctx)
	}
	if err != nil {
		return errors.Join(err, c.Close())
	}
	p.mu.Lock()
	p.client, p.presence, p.sweeper = c, pr, startSweeper(c, log)
	p.mu.Unlock()
	p.trim.start(ctx, c, log)
	return nil
}

// Stop gives the name up and closes the client. Readers and publishers have been stopped before.
func (s service) Stop(ctx context.Context) error {
	p := s.p
	p.mu.Lock()
	c, pr, sweeper := p.client, p.presence, p.sweeper
	p.client, p.presence, p.sweeper = nil, nil, nil
	p.mu.Unlock()
	if c == nil {
		return nil
	}
	sweeper.stop()
	p.trim.stop()
	return errors.Join(pr.release(ctx), c.Close())
}

// Failed delivers an error when another process has taken the instance's name.
func (s service) Failed() <-chan error { return s.p.failed }

// Source reads a stream for a group. Stream and group are created when missing, and made again when they
// are gone. The route's window is the number of slots; an order means one slot.
func (p *Plugin) Source(stream, group string) pipeline.Source {
	return source{p, pipeline.Endpoint{Kind: Kind, Name: stream, Group: group}}
}

type source struct {
	p  *Plugin
	at pipeline.Endpoint
}

// Describe returns the stream and the group.
func (s source) Describe() pipeline.Endpoint { return s.at }

// Open starts a reader with the plugin's settings.
func (s source) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	slots := slotsFor(f, s.p.cfg.Slots)
	return s.p.open(ctx, s.at, f, s.p.cfg.ReclaimInterval, streamSlots{s.at.Name, slots})
}

// streamSlots is a stream to be read, and how many messages of it may be in hand.
type streamSlots struct {
	stream string
	slots  int
}

// open starts a reader for every stream, with the plugin's settings, all on one channel.
func (p *Plugin) open(ctx context.Context, at pipeline.Endpoint, f pipeline.Flow, reclaim time.Duration, streams ...streamSlots) (*subscription, error) {
	c := p.Client()
	if c == nil {
		return nil, fmt.Errorf("open %s: the redis service has not been started", at)
	}
	p.mu.Lock()
	env := p.env
	p.mu.Unlock()
	instance := env.Instance
	if instance == "" {
		instance = watermill.NewULID()
	}
	cfgs := make([]ReaderConfig, len(streams))
	for i, s := range streams {
		cfgs[i] = p.cfg.reader()
		cfgs[i].Stream, cfgs[i].Slots, cfgs[i].Group = s.stream, s.slots, at.Group
		cfgs[i].Consumer, cfgs[i].Gate, cfgs[i].LongestRun = instance+"-0", f.Gate, f.LongestHold
		cfgs[i].Fence = p.Fence
	}
	sub, err := openSubscription(ctx, c, cfgs, subscriptionOptions{
		base: context.Background(), closeTimeout: p.cfg.CloseTimeout, reclaim: reclaim,
		log: env.Logger, metrics: p.metrics,
	})
	if err != nil {
		return nil, err
	}
	for i, r := range sub.readers {
		stop := p.trim.add(cfgs[i].Stream, at.Group, func() int64 { return r.Stats().Acked })
		sub.wg.Go(func() {
			<-sub.closed
			stop()
		})
	}
	return sub, nil
}

// slotsFor returns how many slots a route asks for. Streams have no partitions: whatever order is asked for
// is kept by handling one message at a time, in each instance.
func slotsFor(f pipeline.Flow, slots int) int {
	if f.Order != pipeline.OrderNone {
		return 1
	}
	if f.Window > 0 {
		slots = f.Window
	}
	if f.MaxInFlight > 0 {
		slots = min(slots, f.MaxInFlight)
	}
	return slots
}

// reader returns the defaults as a ReaderConfig.
func (c ReadDefaults) reader() ReaderConfig {
	return ReaderConfig{
		Slots: c.Slots, Batch: c.BatchSize, PollInterval: c.PollInterval, FirstPoll: c.FirstPoll,
		MinIdle: c.MinIdle, LongestHold: c.LongestHold, AckCount: c.AckCount, AckInterval: c.AckInterval,
		MaxRedeliveries: c.MaxRedeliveries, Redelivery: c.Redelivery,
	}
}

// Sink publishes to a stream, which is created when missing. All sinks of the plugin share pipelines.
func (p *Plugin) Sink(stream string) pipeline.Sink {
	return sink{p, pipeline.Endpoint{Kind: Kind, Name: stream}}
}

type sink struct {
	p  *Plugin
	at pipeline.Endpoint
}

// Describe returns the stream.
func (s sink) Describe() pipeline.Endpoint { return s.at }

// Publish returns when all messages are in the stream, with the trace context of ctx in their headers. See
// Publisher for what may be there twice.
func (s sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	traced := trace.SpanContextFromContext(ctx).IsValid()
	entries := make([]Entry, len(msgs))
	for i, m := range msgs {
		if traced {
			m = m.Copy() // the caller's message is not ours to change
			pipeline.InjectTrace(ctx, m.Metadata)
		}
		entries[i] = NewEntry(m)
	}
	return s.p.publish.publish(ctx, s.at.Name, entries)
}

var (
	_ pipeline.Plugin       = (*Plugin)(nil)
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Failer       = service{}
	_ pipeline.Service      = service{}
	_ pipeline.Source       = source{}
	_ pipeline.Sink         = sink{}
	_ pipeline.Subscription = (*subscription)(nil)
)
