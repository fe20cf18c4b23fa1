package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/sync/singleflight"

	"github.com/millrace-io/millrace/pipeline"
)

// pluginName is the plugin's name, and that of its service and health check.
const pluginName = "kafka"

// Kind is the Kind of this plugin's endpoints and origins.
const Kind = "kafka"

// Plugin brings Kafka: sources, sinks and topics. Build it with New. Its methods are safe for
// concurrent use once it is registered.
type Plugin struct {
	config      Config
	metrics     *metrics
	log         *slog.Logger
	routes      *pipeline.Registry // nil before Register
	longestHold time.Duration      // see the constant; tests shorten it
	deathLimit  int                // see the constant; tests lower it
	ends        endTimes

	// turn has the record that a careful claim runs (crashes.go).
	turn chan struct{}

	mu   sync.Mutex
	live *connection // nil while the service is not running
}

// connection is what the service opens: the shared publisher and a client for metadata.
type connection struct {
	config      Config // as it was at Start
	client      sarama.Client
	publisher   *publisher
	carriesMore func(topic string) bool // it is a retry or dead-letter topic

	known    sync.Map // topics that can be used
	creating singleflight.Group

	ctx    context.Context // ends when the connection is closed
	cancel context.CancelFunc
	mu     sync.Mutex // between the end of ctx and new work
	work   sync.WaitGroup
}

func newConnection(config Config, client sarama.Client, pub *publisher, carriesMore func(string) bool) *connection {
	c := &connection{config: config, client: client, publisher: pub, carriesMore: carriesMore}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// close flushes the publisher for as long as ctx lasts, and closes everything. It is called once.
func (c *connection) close(ctx context.Context) error {
	var err error
	if c.publisher != nil { // a connection that only reads has none
		err = c.publisher.close(ctx)
	}
	c.mu.Lock()
	c.cancel()
	c.mu.Unlock()
	if closeErr := c.client.Close(); closeErr != nil && !errors.Is(closeErr, sarama.ErrClosedClient) {
		err = errors.Join(err, closeErr)
	}
	c.work.Wait() // it ends soon without its client
	return err
}

// New returns the plugin with default settings. It opens nothing.
func New() *Plugin {
	return &Plugin{
		config: defaultConfig(), metrics: newMetrics(), log: slog.New(slog.DiscardHandler),
		turn: make(chan struct{}, 1), longestHold: longestHold, deathLimit: deathLimit, ends: defaultEndTimes(),
	}
}

// Name returns "kafka".
func (p *Plugin) Name() string { return pluginName }

// Kind implements deadletter.Transport.
func (p *Plugin) Kind() string { return Kind }

// Settings returns the plugin's *Config. It may be changed until the service starts.
func (p *Plugin) Settings() any { return &p.config }

// Config returns a copy of the settings, which are final when plugins are registered. It is for
// plugins that stand on this one.
func (p *Plugin) Config() Config { return p.config }

// Register adds the service, the health check and the collectors. Where topics are not created, the
// service's start fails with ErrTopicMissing when a topic of a registered route or endpoint does not
// exist.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log, p.routes = r.Env().Logger.With("component", pluginName), r
	r.Service(pluginName, routesService{service{p}})
	r.Health(pluginName, p.healthy)
	r.Collect(p.metrics)
	r.Offer(p)
	r.ErrorClasses(errorClasses()...)
	return nil
}

// Source reads topic as a member of a consumer group, a window of records of a partition at once.
// Open it after the service has started.
func (p *Plugin) Source(topic, group string) pipeline.Source {
	return groupSource{p, topic, group}
}

// Broadcast reads every record of topic that is published after it was opened, on every instance:
// without a group, without commits. Records published while no instance reads are not delivered.
func (p *Plugin) Broadcast(topic string) pipeline.Source {
	return broadcastSource{p, topic}
}

// Sink publishes to topic. The record's key is the message's pipeline.MetaKey; without one the
// record goes to any partition.
func (p *Plugin) Sink(topic string) pipeline.Sink {
	p.metrics.publishErrors.WithLabelValues(topic) // 0 from the first scrape on
	return sink{p, topic}
}

// retries says whether topic is the Retry.To of a route: only there a record waits until it is due.
func (p *Plugin) retries(topic string) bool {
	return p.routes != nil && len(p.routes.RetriesInto(pipeline.Endpoint{Kind: Kind, Name: topic})) > 0
}

// carriesMore says whether topic takes records of other topics with headers of ours.
func (p *Plugin) carriesMore(topic string) bool {
	return p.retries(topic) || p.routes != nil && len(p.routes.DeadLettersInto(pipeline.Endpoint{Kind: Kind, Name: topic})) > 0
}

// keepsDead says whether the routes that read from have dead letters.
func (p *Plugin) keepsDead(from pipeline.Endpoint) (keeps bool) {
	if p.routes == nil {
		return false
	}
	for _, r := range p.routes.Routes() {
		if r.From.Describe() != from {
			continue
		}
		if r.Policy.DeadLetter == nil || r.Policy.DeadLetter == pipeline.Drop {
			return false
		}
		keeps = true
	}
	return keeps
}

func (p *Plugin) connected() (*connection, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		return nil, errNotStarted
	}
	return p.live, nil
}

// healthy reports a subscription that has not been in its group for longer than any rebalance
// takes.
func (p *Plugin) healthy(context.Context) error {
	live, err := p.connected()
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range p.metrics.open() {
		if away, why := s.notJoined(); away > live.config.RebalanceTimeout {
			err := fmt.Errorf("kafka: %s (%s): not a member of its group for %s", s.topic, s.group, away.Round(time.Second))
			if why != nil {
				err = fmt.Errorf("%w: %w", err, why)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// groupSource is a topic and a consumer group.
type groupSource struct {
	plugin       *Plugin
	topic, group string
}

func (g groupSource) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: Kind, Name: g.topic, Group: g.group}
}

func (g groupSource) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	live, err := g.plugin.open(ctx, g.topic)
	if err != nil {
		return nil, err
	}
	if g.group == "" {
		return nil, fmt.Errorf("kafka: source %s has no group", g.topic)
	}
	instance := g.plugin.memberName(live.config, g.topic, g.group)
	hold, isRetry := g.plugin.longestHold, g.plugin.retries(g.topic)
	if isRetry {
		if hold, err = g.plugin.holdIn(ctx, live, g.topic, hold); err != nil {
			return nil, err
		}
	}
	s, err := openGroup(live.config, g.topic, g.group, instance, f, g.plugin.log, g.plugin.metrics)
	if err != nil {
		return nil, err
	}
	s.turn = g.plugin.turn
	if g.plugin.keepsDead(g.Describe()) {
		s.deathLimit = g.plugin.deathLimit
	}
	if isRetry {
		s.retries, s.hold = g.plugin.Sink(g.topic), hold
	}
	return s, nil
}

// broadcastSource is a topic that every instance reads.
type broadcastSource struct {
	plugin *Plugin
	topic  string
}

func (b broadcastSource) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: Kind, Name: b.topic}
}

func (b broadcastSource) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	live, err := b.plugin.open(ctx, b.topic)
	if err != nil {
		return nil, err
	}
	return openBroadcast(ctx, live.config, b.topic, sarama.OffsetNewest, f, b.plugin.log)
}

// open returns the connection, and the topic exists if it may be created.
func (p *Plugin) open(ctx context.Context, topic string) (*connection, error) {
	live, err := p.connected()
	if err != nil {
		return nil, fmt.Errorf("kafka: open %s: %w", topic, err)
	}
	if live.config.CreateTopics {
		if err := live.ensure(ctx, topic); err != nil {
			return nil, err
		}
	}
	return live, nil
}

// snapshot copies the settings, so that a running service does not see later changes.
func (p *Plugin) snapshot() Config {
	c := p.config
	c.Brokers, c.Balance = slices.Clone(c.Brokers), slices.Clone(c.Balance)
	return c
}

var (
	_ pipeline.Plugin       = (*Plugin)(nil)
	_ pipeline.Configurable = (*Plugin)(nil)
)
