package promotion

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/slots"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redisstream"
	"github.com/millrace-io/millrace/plugins/streams"
)

const (
	// handlerTimeout bounds what a handler waits for in addition to the call, which has its lease:
	// the ledger, the stream and a call slot. It is shorter than the drain timeout of the consumer
	// groups.
	handlerTimeout = 15 * time.Second
	minLongestHold = 2 * time.Minute
)

// maxAcceptInFlight is the maximum number of records per type in flight on the Kafka route, over
// all partitions. It is enough to fill the ledger's batches.
const maxAcceptInFlight = 1024

// Plugin pays campaign promotions. It is built offline by New.
type Plugin struct {
	config Config
	kafka  *kafka.Plugin
	redis  *redis.Plugin
	dead   *deadletter.Plugin

	run      *resources
	managers map[string]*streams.Manager // by type; filled by Register
	measured func() feeder.Measurement   // nil before Register
	registry *pipeline.Registry          // the same
}

// New returns the plugin with default settings, on the given transports.
func New(k *kafka.Plugin, r *redis.Plugin, dead *deadletter.Plugin) *Plugin {
	p := &Plugin{config: DefaultConfig(), kafka: k, redis: r, dead: dead}
	p.config.drainTimeout = func() time.Duration { return k.Config().DrainTimeout }
	p.run = newResources(&p.config)
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "promotion" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Needs implements pipeline.Dependent.
func (p *Plugin) Needs() []string {
	return []string{p.kafka.Name(), p.redis.Name(), p.dead.Name(), reclaim.Name}
}

// Schemas implements pipeline.Migratable.
func (p *Plugin) Schemas(env pipeline.Env) []migration.Schema {
	return []migration.Schema{p.run.schema(env.Logger)}
}

// ledger returns the open ledger. It is nil until its service has started.
func (p *Plugin) ledger() *ledger.Ledger { return p.run.ledger }

// Register implements pipeline.Plugin. Services and routes are registered downstream first, and
// stop in the reverse order. The stream of a record that is being accepted is then still read.
func (p *Plugin) Register(r *pipeline.Registry) error {
	log := r.Env().Logger.With(slog.String(logs.Plugin, p.Name()))
	p.registry = r
	p.run.use(r.Env(), log)
	r.ErrorClasses(errorClasses()...)
	r.Offer(p) // it is an operate.Examined, Auditor and Operated, and a console.Contributor
	for _, schema := range p.Schemas(r.Env()) {
		r.Offer(schema) // it is an operate.Examined
	}
	r.Offer(deadletter.ReplayedBy{Plugin: payout.OutboxName, Replayer: payout.Replays{Ledger: p.ledger, Services: func(r *pipeline.Registry) {
		p.run.use(r.Env(), r.Env().Logger)
		r.Service("promotion.ledger", p.run.ledgerService(false))
	}}})

	streamsRedis := p.redis.Server(p.config.Stream.Redis, streamKeys()...)
	streamsRedis.Log = log
	p.run.streamsRedis.Store(streamsRedis)
	r.Service("promotion.redis", streamsRedis)
	r.Service("promotion.money", p.run.moneyService())
	r.Service("promotion.instance", p.run.runningService(streamsRedis))
	r.Service("promotion.ledger", p.run.ledgerService(true))

	payoutMetrics, feederMetrics, streamMetrics := payout.NewMetrics(), feeder.NewMetrics(), streams.SharedMetrics(r)
	p.managers = p.newManagers(streamsRedis, r.Env(), log, streamMetrics)
	for _, m := range p.managers {
		r.Offer(m.ReclaimTarget())
	}
	r.Service("promotion.outbox", p.dead.Relay(payout.OutboxName, payout.DeadLetters{Ledger: p.ledger}))
	if c := p.config.Results; c.Enabled {
		results := redisstream.NewSink(p.redis, payout.ResultsStream)
		r.Endpoint(pipeline.UseWrites, results.Describe())
		r.Service("promotion.results", &payout.Results{Ledger: p.ledger, To: results, Redis: p.redis.Server(nil),
			Retention: c.Retention, RequiredGroups: c.RequiredGroups, Metrics: payoutMetrics,
			Log: log.With(slog.String(logs.Component, "results"))})
	}
	feeds := feeder.New(feeder.Options{Ledger: p.ledger, Streams: p.managers, Config: p.config.Feeder,
		AcceptUnannounced: p.config.AcceptUnannounced, Waiting: &p.run.waiting, Metrics: feederMetrics, Log: log})
	r.Service("promotion.feeder", feeds)
	r.Offer(feeds) // operate.Remeasured
	p.measured = feeds.Measured

	for _, t := range promotiontype.All() {
		p.routes(r, t, payoutMetrics, log)
	}
	if p.config.Stream.Enabled {
		r.Route(pipeline.Route{
			Name:   "promotion.started",
			From:   p.kafka.Broadcast(promotiontype.StartedTopic),
			Handle: pipeline.JSON(p.started),
			Policy: pipeline.Policy{Timeout: handlerTimeout, LongestHold: p.config.longestHold(), DeadLetter: p.dead.Sink(promotiontype.StartedDeadTopic)},
		})
	}
	ready := readiness{feeds.Measured, &p.run.progress, r.RoutePaused}
	r.Health("promotion", ready.check)
	r.Collect(pausedRoutes{ready})
	r.Offer(conditions{p.run, feeds.Measured})
	r.Collect(append(payoutMetrics.Collectors(), feederMetrics.Collectors()...)...)
	r.Collect(clientMetrics{p.run}, p.run.simulated())
	r.Collect(p.run.metrics.Collectors()...)
	return nil
}

// streamKeys returns keys on which the user must have all rights. No promotion has them; all
// promotions of a type share the wake-up stream.
func streamKeys() (keys []string) {
	for _, t := range promotiontype.All() {
		stream := t.StreamPrefix() + "0"
		keys = append(keys, stream, streams.MetaKey(stream), streams.Kind{StreamPrefix: t.StreamPrefix()}.WakeKey())
	}
	return keys
}

func (p *Plugin) newManagers(c *redis.Server, env pipeline.Env, log *slog.Logger, m *streams.Metrics) map[string]*streams.Manager {
	all, found := map[string]*streams.Manager{}, redis.NewFound(promotiontype.StreamName)
	for _, t := range promotiontype.All() {
		o := p.streamOptions(t)
		o.Client, o.Connect, o.Found, o.Instance, o.Logger, o.Metrics = c.Client, c.Connect, found, env.Instance, log, m
		all[t.Name] = streams.NewManager(o)
	}
	return all
}

func (p *Plugin) streamOptions(t promotiontype.Type) streams.Options {
	set := feeder.ActiveSet{Ledger: p.ledger, Type: payouts.Type(t.Name), Waiting: &p.run.waiting}
	return streams.Options{
		Kind:          streams.Kind{Type: t.Name, StreamPrefix: t.StreamPrefix(), GroupPrefix: t.GroupPrefix()},
		Config:        p.run.streamConfig,
		Activations:   set,
		Admit:         set.Admit,
		Blocked:       set.Blocked,
		Created:       set.Created,
		Deleted:       set.Deleted,
		Fence:         p.redis.Fence,
		Owner:         func() string { return p.run.ledgerID },
		Gate:          p.run.ready,
		Ahead:         p.config.MoneyAPI.ahead(),
		Note:          func(id string) json.RawMessage { return p.run.note(payouts.Type(t.Name), id) },
		ReaderMetrics: p.redis.ReaderMetrics(),
	}
}

func (p *Plugin) routes(r *pipeline.Registry, t promotiontype.Type, m *payout.Metrics, log *slog.Logger) {
	stream := func() bool { return p.config.Stream.Enabled }
	proc := &payout.Processor{Type: t, Ledger: p.ledger, MoneyAPI: func() money.API { return p.run.api }, Streams: p.managers[t.Name],
		Begins: func() *slots.Slots { return p.run.begins }, CallTimeout: p.config.MoneyAPI.CallTimeout,
		PayAtOnce: func() bool { return !stream() }, Metrics: m, Progress: &p.run.progress, Recent: &p.run.recent, Log: log}
	policy := func(retry pipeline.Retry) pipeline.Policy {
		retry.To, retry.Backoff, retry.Payload = p.kafka.Sink(t.RetryTopic()), p.config.Ledger.Retry, promotiontype.WithRetryCount
		return pipeline.Policy{Timeout: handlerTimeout, LongestHold: p.config.longestHold(), DeadLetter: p.dead.Sink(t.DeadTopic()), Retry: retry}
	}
	moneyAPI := p.config.MoneyAPI.servers()
	r.Route(pipeline.Route{
		Name:   proc.StreamRoute(),
		From:   proc.Streams.Source(),
		Handle: proc.PayFrom(proc.StreamRoute()),
		Calls:  moneyAPI,
		// All failures go to the retry topic: a pending entry would wait for min_idle.
		Policy:   policy(pipeline.Retry{TakesReplays: true}),
		Activity: proc.Streams.Activity(),
	})
	r.Route(pipeline.Route{
		Name:   proc.RetryRoute(),
		From:   p.kafka.Source(t.RetryTopic(), t.RetryGroup()),
		Handle: proc.PayFrom(proc.RetryRoute()),
		Calls:  moneyAPI,
		Policy: policy(pipeline.Retry{TakesReplays: true, OnlyRetryAfter: true}),
		Flow:   pipeline.Flow{Gate: p.run.ready},
	})
	r.Route(pipeline.Route{
		Name: proc.AcceptRoute(),
		From: p.kafka.Source(t.PublishTopic(), t.Group()),
		To:   proc.Publisher(),
		// The route that reads the retry topic pays: a record that was never accepted would be
		// unannounced, and so takes no replays.
		Policy: policy(pipeline.Retry{OnlyRetryAfter: true}),
		// Accepting does not need the Money API; paying at once does.
		Flow: pipeline.Flow{MaxInFlight: p.acceptInFlight(), Gate: func() bool { return stream() || p.run.ready() }},

		HandleBatch: proc.Accept,
		Batch:       p.config.AcceptBatch,
	})
}

// acceptInFlight returns the maximum number of records per type in flight on the Kafka route. If
// they are paid there, it is not larger than the number of payouts that may be started: more
// records would only wait.
func (p *Plugin) acceptInFlight() int {
	if p.config.Stream.Enabled {
		return maxAcceptInFlight
	}
	return min(maxAcceptInFlight, startsPerSlot*p.config.MoneyAPI.Concurrency)
}

// started handles a started event. It sizes and starts the stream of a promotion early, if there is
// a place. A missed event delays the promotion, and nothing is lost.
func (p *Plugin) started(ctx context.Context, m promotiontype.Started) error {
	manager, known := p.managers[m.PromotionType]
	if !known {
		err := fmt.Errorf("promotionType: must be one of %s, got %q", strings.Join(promotiontype.Names(), ", "), m.PromotionType)
		return pipeline.WithClass(pipeline.Permanent(err), promotiontype.ClassUnknownType)
	}
	if err := p.run.ledger.Started(ctx, payouts.Promotion{Type: payouts.Type(m.PromotionType), ID: m.PromotionID}, m.TotalCount); err != nil {
		return fmt.Errorf("promotion: started %s %d: %w", m.PromotionType, m.PromotionID, err)
	}
	manager.Refresh()
	return nil
}

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Migratable   = (*Plugin)(nil)
	_ app.Placed            = (*Plugin)(nil)
)
