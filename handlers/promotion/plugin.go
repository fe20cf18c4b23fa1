package promotion

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redispoll"
	"github.com/millrace-io/millrace/plugins/redisstream"
	"github.com/millrace-io/millrace/plugins/streams"
)

// handlerTimeout bounds what a handler waits for beside the call, whose limit is its lease: the ledger,
// the stream and a slot of the Money API. It stays under the drain timeout of the consumer groups.
const (
	handlerTimeout   = 15 * time.Second
	leastLongestHold = 2 * time.Minute
)

// maxAcceptInFlight bounds the records of a type that are being accepted at once, over all partitions. It fills the
// ledger's batches; more would only cost memory.
const maxAcceptInFlight = 1024

// Plugin pays campaign promotions. It is built offline by New.
type Plugin struct {
	config Config
	kafka  *kafka.Plugin
	redis  *redispoll.Plugin
	bridge *redisstream.Plugin
	dead   *deadletter.Plugin
	claims *reclaim.Plugin

	run      *engine
	managers map[string]*streams.Manager // by type; filled by Register
	metrics  *metrics
}

// New returns the plugin with default settings, on the given transports.
func New(k *kafka.Plugin, r *redispoll.Plugin, bridge *redisstream.Plugin, dead *deadletter.Plugin, claims *reclaim.Plugin) *Plugin {
	p := &Plugin{config: DefaultConfig(), kafka: k, redis: r, bridge: bridge, dead: dead, claims: claims, metrics: newMetrics()}
	p.config.drainTimeout = func() time.Duration { return k.Settings().(*kafka.Config).DrainTimeout }
	p.run = newEngine(&p.config, p.metrics)
	dead.ReplayWith(deadName, deadReplays{p.run})
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "promotion" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Needs implements pipeline.Dependent.
func (p *Plugin) Needs() []string {
	needs := []string{p.kafka.Name(), p.redis.Name(), p.dead.Name(), p.claims.Name()}
	if p.config.Results.Enabled {
		needs = append(needs, p.bridge.Name())
	}
	return needs
}

// Schemas implements pipeline.Migratable.
func (p *Plugin) Schemas(env pipeline.Env) []pipeline.Schema {
	return []pipeline.Schema{p.run.schema(env.Logger)}
}

// Register implements pipeline.Plugin. Services come downstream first, and so do routes: they stop in
// the reverse order, so that a record that is being accepted still finds its stream being read.
func (p *Plugin) Register(r *pipeline.Registry) error {
	log := r.Env().Logger.With(slog.String(pipeline.LogPlugin, p.Name()))
	p.run.prepare(r.Env(), log)

	streamsRedis := &streamRedis{shared: p.redis, config: p.config.Stream.Redis, log: log}
	for _, s := range strategies() {
		stream := s.streamPrefix() + "0" // no promotion has this number
		streamsRedis.probes = append(streamsRedis.probes, stream, streams.MetaKey(stream))
	}
	r.Service("promotion.redis", streamsRedis)
	r.Service("promotion.money", p.run.moneyService())
	r.Service("promotion.ledger", p.run.ledgerService())

	streamMetrics := streams.NewMetrics()
	p.managers = p.newManagers(streamsRedis, r.Env(), log, streamMetrics)
	for _, m := range p.managers {
		p.claims.Add(m.ReclaimTarget())
	}
	r.Service("promotion.outbox", p.dead.Relay(deadName, deadOutbox{p.run}))
	if p.config.Results.Enabled {
		r.Service("promotion.results", newResultRelay(p.run, p.bridge.Sink(resultsStream), p.redis.Client, log))
	}
	r.Service("promotion.feeder", newFeeder(p.run, p.managers, log))

	for _, s := range strategies() {
		p.route(r, s, log)
	}
	if p.config.Stream.Enabled {
		r.Route(pipeline.Route{
			Name:   "promotion.started",
			From:   p.kafka.Broadcast(startedTopic),
			Handle: pipeline.JSON(p.started),
			Policy: pipeline.Policy{Timeout: handlerTimeout, LongestHold: p.config.longestHold(), DeadLetter: p.dead.Sink(startedDeadTopic)},
		})
	}
	r.Health("promotion", p.run.progressing)
	r.Collect(p.metrics.collectors()...)
	r.Collect(streamMetrics)
	return nil
}

// newManagers returns the manager of every type's streams.
func (p *Plugin) newManagers(c *streamRedis, env pipeline.Env, log *slog.Logger, m *streams.Metrics) map[string]*streams.Manager {
	all := map[string]*streams.Manager{}
	for _, s := range strategies() {
		o := p.streamOptions(s)
		o.Client, o.Instance, o.Logger, o.Metrics = c.Client, env.Instance, log, m
		all[s.kind] = streams.NewManager(o)
	}
	return all
}

// streamOptions returns what the streams of a type take from this plugin.
func (p *Plugin) streamOptions(s strategy) streams.Options {
	set := activations{p.run, ledger.Type(s.kind)}
	return streams.Options{
		Kind:          streams.Kind{Type: s.kind, StreamPrefix: s.streamPrefix(), GroupPrefix: s.groupPrefix()},
		Config:        p.run.streamConfig,
		Activations:   set,
		Admit:         set.admit,
		Blocked:       set.blocked,
		Created:       set.created,
		Fence:         p.redis.Fence,
		Owner:         func() string { return p.run.ledgerID },
		Gate:          p.run.ready,
		ReaderMetrics: p.redis.Metrics(),
	}
}

// route adds the three routes of a type.
func (p *Plugin) route(r *pipeline.Registry, s strategy, log *slog.Logger) {
	proc := &processor{strategy: s, run: p.run, manager: p.managers[s.kind], log: log}
	policy := func(onlyAsked bool) pipeline.Policy {
		return pipeline.Policy{
			Timeout:     handlerTimeout,
			LongestHold: p.config.longestHold(),
			DeadLetter:  p.dead.Sink(s.deadTopic()),
			Retry: pipeline.Retry{
				To:        p.kafka.Sink(s.retryTopic()),
				OnlyAsked: onlyAsked,
				Backoff:   p.config.Ledger.Retry,
				Payload:   retryPayload,
			},
		}
	}
	r.Route(pipeline.Route{
		Name:     proc.streamRoute(),
		From:     proc.manager.Source(),
		Handle:   proc.payOn(proc.streamRoute()),
		Policy:   policy(false), // an entry that stays pending waits for min_idle; a retry record doesn't
		Activity: proc.manager.Activity(),
	})
	r.Route(pipeline.Route{
		Name:   proc.retryRoute(),
		From:   p.kafka.Source(s.retryTopic(), s.retryGroup()),
		Handle: proc.payOn(proc.retryRoute()),
		Policy: policy(true),
		Flow:   pipeline.Flow{Gate: p.run.ready},
	})
	r.Route(pipeline.Route{
		Name:   proc.acceptRoute(),
		From:   p.kafka.Source(s.publishTopic(), s.group()),
		Handle: proc.accept,
		To:     streamSink{proc},
		Policy: policy(true),
		// Accepting needs no Money API; paying at once does.
		Flow: pipeline.Flow{MaxInFlight: p.acceptInFlight(), Gate: func() bool { return p.config.Stream.Enabled || p.run.ready() }},
	})
}

// acceptInFlight is how many records of a type are in flight at once on the Kafka route. When they are paid there, more than the Money
// API has slots would only wait for one.
func (p *Plugin) acceptInFlight() int {
	if p.config.Stream.Enabled {
		return maxAcceptInFlight
	}
	return min(maxAcceptInFlight, p.config.MoneyAPI.MaxInFlight)
}

func (s strategy) acceptRoute() string { return "promotion." + strings.ToLower(s.kind) + ".accept" }
func (s strategy) streamRoute() string { return "promotion." + strings.ToLower(s.kind) + ".stream" }
func (s strategy) retryRoute() string  { return "promotion." + strings.ToLower(s.kind) + ".retry" }

// maxRetryCount is what retryCount says at most; the ledger counts, the field is a hint.
const maxRetryCount = 5

func retryPayload(payload []byte, retry int) ([]byte, error) {
	return withRetryCount(payload, min(max(retry, 0), maxRetryCount))
}

// started sizes and starts the streams of a promotion early, if there is a place. What was missed is in the ledger.
func (p *Plugin) started(ctx context.Context, m StartedMessage) error {
	manager, known := p.managers[m.PromotionType]
	if !known {
		err := fmt.Errorf("promotionType: must be one of %s, got %q", strings.Join(kinds(), ", "), m.PromotionType)
		return pipeline.WithClass(pipeline.Permanent(err), classUnknownType)
	}
	if err := p.run.ledger.Started(ctx, ledger.Promotion{Type: ledger.Type(m.PromotionType), ID: m.PromotionID}, m.TotalCount); err != nil {
		return fmt.Errorf("promotion: started %s %d: %w", m.PromotionType, m.PromotionID, err)
	}
	manager.Hint()
	return nil
}

var (
	_ pipeline.Plugin       = (*Plugin)(nil)
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Migratable   = (*Plugin)(nil)
	_ app.Placed            = (*Plugin)(nil)
	_ message.HandlerFunc   = (*processor)(nil).accept
)
