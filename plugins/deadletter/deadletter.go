package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// Topics makes sinks of topics; plugins/kafka is one.
type Topics interface {
	Sink(topic string) pipeline.Sink
}

// Streams makes sinks of Redis streams; plugins/redispoll is one.
type Streams interface {
	Sink(stream string) pipeline.Sink
}

// Plugin brings dead letters to their topics and into the working copy, and back to where they came from.
type Plugin struct {
	config    Config
	topics    Topics
	streams   Streams
	replayers map[string]Replayer // by plugin
	disabled  []string            // plugins that a command must not open: their settings are not validated
	letters   atomic.Pointer[letters.Store]
	log       *slog.Logger
	notices   *notices
	metrics   metrics
}

type metrics struct {
	published   *prometheus.CounterVec
	unpublished *prometheus.CounterVec
	failures    *prometheus.CounterVec
	failing     *prometheus.GaugeVec
	waiting     *prometheus.GaugeVec
}

// New returns the plugin with default settings. Letters go to topics of kafka, and are replayed to those and to
// streams of redis; a nil one has none.
func New(kafka Topics, redis Streams) *Plugin {
	p := &Plugin{
		config:    DefaultConfig(),
		topics:    kafka,
		streams:   redis,
		replayers: map[string]Replayer{},
		log:       slog.New(slog.DiscardHandler),
		metrics: metrics{
			published: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "millrace_deadletter_published_total",
				Help: "Dead letters made durable, by topic.",
			}, []string{"topic"}),
			unpublished: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "millrace_deadletter_unpublished_total",
				Help: "Dead letters that their topic refuses even when they are cut; only the working copy has them. By topic.",
			}, []string{"topic"}),
			failures: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "millrace_deadletter_relay_failures_total",
				Help: "Rounds of a relay that failed wholly or in part, by outbox.",
			}, []string{"outbox"}),
			failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "millrace_deadletter_relay_failing",
				Help: "1 while the last round of a relay failed, by outbox.",
			}, []string{"outbox"}),
			waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "millrace_deadletter_letters",
				Help: "Dead letters in the working copy that wait for a person, by class and state. Every instance tells the same number: take the maximum.",
			}, []string{"class", "state"}),
		},
	}
	p.notices = newNotices(p)
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "deadletter" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Register implements pipeline.Plugin. Relays are registered by the plugins that own their outboxes.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log = r.Env().Logger.With(slog.String(pipeline.LogPlugin, p.Name()))
	r.Service("deadletter.store", &store{plugin: p, schemas: r.Env().Schemas, count: true})
	r.Service("deadletter.notices", p.notices)
	r.Collect(p.metrics.published, p.metrics.unpublished, p.metrics.failures, p.metrics.failing, p.metrics.waiting)
	return nil
}

// Needs implements pipeline.Dependent. Redis is needed only to replay the letters of its streams.
func (p *Plugin) Needs() []string { return []string{"kafka"} }

// Sink returns the dead-letter sink of a topic, for Policy.DeadLetter of routes without a ledger. A letter is in the
// working copy, if there is one, before it is in the topic. It is safe for concurrent use.
func (p *Plugin) Sink(topic string) pipeline.Sink {
	p.metrics.published.WithLabelValues(topic) // there from the first scrape, so that the first one is an increase
	p.metrics.unpublished.WithLabelValues(topic)
	return &sink{Sink: p.topics.Sink(topic), plugin: p}
}

type sink struct {
	pipeline.Sink
	plugin *Plugin
}

// Publish returns nil when every letter is in its topic or, where the topic refuses it for good even when it is cut, in
// the working copy. The error is permanent when the topic refuses a letter and there is no working copy.
func (s *sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	topic := s.Describe().Name
	batch := make([]letters.Letter, len(msgs))
	for i, m := range msgs {
		batch[i] = fromMessage(topic, m)
	}
	if err := s.plugin.keep(ctx, batch); err != nil {
		return err
	}
	err := s.plugin.toTopic(ctx, topic, s.Sink, batch, msgs)
	if len(msgs) == 1 || !pipeline.IsPermanent(err) {
		return err
	}
	for i := range msgs {
		if err := s.plugin.toTopic(ctx, topic, s.Sink, batch[i:i+1], msgs[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// toTopic publishes the messages of a batch, counts them, and logs them. A batch of one is cut until its topic takes it. The
// letters are in the working copy, if there is one: then a letter that the topic refuses for good is done all the same.
func (p *Plugin) toTopic(ctx context.Context, topic string, to pipeline.Sink, batch []letters.Letter, msgs []*message.Message) error {
	if len(msgs) > 1 {
		if err := to.Publish(ctx, msgs...); err != nil {
			return err
		}
		p.metrics.published.WithLabelValues(topic).Add(float64(len(msgs)))
		p.notices.add(ctx, batch)
		return nil
	}
	err := pipeline.PublishDeadLetter(ctx, to, msgs[0])
	switch {
	case err == nil:
		p.metrics.published.WithLabelValues(topic).Inc()
	case !pipeline.IsPermanent(err) || p.config.Store.DSN.IsZero():
		return err
	default:
		p.metrics.unpublished.WithLabelValues(topic).Inc()
		p.log.ErrorContext(ctx, "the topic refuses a dead letter, only the working copy has it", slog.String(pipeline.LogTopic, topic),
			slog.String("id", batch[0].ID), slog.String(pipeline.LogOrigin, batch[0].Source.String()), pipeline.Err(err))
	}
	p.notices.add(ctx, batch)
	return nil
}

// hopeless is how many letters in a row may fail before the rest of a batch isn't tried: then it is
// not the letters, it is the broker.
const hopeless = 3

// publish makes a batch durable: in the working copy, then topic by topic, in order, each topic in one call. Where that fails, its
// letters go one by one, so that one that no broker takes (too large, an unknown topic) holds up no other.
func (p *Plugin) publish(ctx context.Context, outbox string, batch []Letter) error {
	kept := make([]letters.Letter, len(batch))
	for i, letter := range batch {
		kept[i] = letter.kept(outbox)
	}
	if err := p.keep(ctx, kept); err != nil {
		return err
	}
	failed := map[int]error{}
	var order []string
	byTopic := map[string][]int{}
	for i, letter := range batch {
		if byTopic[letter.Topic] == nil {
			order = append(order, letter.Topic)
		}
		byTopic[letter.Topic] = append(byTopic[letter.Topic], i)
	}
	for _, topic := range order {
		p.publishTopic(ctx, topic, batch, kept, byTopic[topic], failed)
	}
	if len(failed) == 0 {
		return nil
	}
	return &PublishError{Failed: failed, Size: len(batch)}
}

func (p *Plugin) publishTopic(ctx context.Context, topic string, batch []Letter, kept []letters.Letter, indexes []int, failed map[int]error) {
	fail := func(err error, indexes ...int) {
		for _, i := range indexes {
			failed[i] = fmt.Errorf("publish to %s: %w", topic, err)
		}
	}
	if topic == "" {
		fail(errors.New("the letter names no topic"), indexes...)
		return
	}
	to := p.topics.Sink(topic)
	publish := func(indexes ...int) error {
		told, msgs := make([]letters.Letter, len(indexes)), make([]*message.Message, len(indexes))
		for n, i := range indexes {
			told[n], msgs[n] = kept[i], batch[i].Message()
		}
		return p.toTopic(ctx, topic, to, told, msgs)
	}
	err := publish(indexes...)
	if err == nil {
		return
	}
	if len(indexes) == 1 {
		fail(err, indexes...)
		return
	}
	inARow := 0
	for n, i := range indexes {
		if inARow == hopeless || ctx.Err() != nil {
			fail(err, indexes[n:]...)
			return
		}
		if err = publish(i); err != nil {
			fail(err, i)
			inARow++
			continue
		}
		inARow = 0
	}
}

var (
	_ pipeline.Plugin       = (*Plugin)(nil)
	_ pipeline.Configurable = (*Plugin)(nil)
)
