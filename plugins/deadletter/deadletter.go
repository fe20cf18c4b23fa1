package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
)

// Topics makes sinks of topics; plugins/kafka is one.
type Topics interface {
	Sink(topic string) pipeline.Sink
}

// Plugin brings dead letters to their topics.
type Plugin struct {
	config  Config
	topics  Topics
	log     *slog.Logger
	metrics metrics
}

type metrics struct {
	published *prometheus.CounterVec
	failures  *prometheus.CounterVec
	failing   *prometheus.GaugeVec
}

// New returns the plugin with default settings, on the topics of kafka.
func New(kafka Topics) *Plugin {
	return &Plugin{
		config: DefaultConfig(),
		topics: kafka,
		log:    slog.New(slog.DiscardHandler),
		metrics: metrics{
			published: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "millrace_deadletter_published_total",
				Help: "Dead letters made durable, by topic.",
			}, []string{"topic"}),
			failures: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "millrace_deadletter_relay_failures_total",
				Help: "Rounds of a relay that failed wholly or in part, by outbox.",
			}, []string{"outbox"}),
			failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
				Name: "millrace_deadletter_relay_failing",
				Help: "1 while the last round of a relay failed, by outbox.",
			}, []string{"outbox"}),
		},
	}
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "deadletter" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Register implements pipeline.Plugin. Relays are registered by the plugins that own their outboxes.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log = r.Env().Logger.With(slog.String(pipeline.LogPlugin, p.Name()))
	r.Collect(p.metrics.published, p.metrics.failures, p.metrics.failing)
	return nil
}

// Sink returns the dead-letter sink of a topic, for Policy.DeadLetter of routes without a ledger. It is safe
// for concurrent use.
func (p *Plugin) Sink(topic string) pipeline.Sink {
	return &sink{Sink: p.topics.Sink(topic), published: p.metrics.published.WithLabelValues(topic)}
}

type sink struct {
	pipeline.Sink
	published prometheus.Counter
}

func (s *sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	if err := s.Sink.Publish(ctx, msgs...); err != nil {
		return err
	}
	s.published.Add(float64(len(msgs)))
	return nil
}

// hopeless is how many letters in a row may fail before the rest of a batch isn't tried: then it is
// not the letters, it is the broker.
const hopeless = 3

// publish makes a batch durable: topic by topic, in order, each topic in one call. Where that fails, its
// letters go one by one, so that one that no broker takes (too large, an unknown topic) holds up no other.
func (p *Plugin) publish(ctx context.Context, batch []Letter) error {
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
		p.publishTopic(ctx, topic, batch, byTopic[topic], failed)
	}
	if len(failed) == 0 {
		return nil
	}
	return &PublishError{Failed: failed, Size: len(batch)}
}

func (p *Plugin) publishTopic(ctx context.Context, topic string, batch []Letter, indexes []int, failed map[int]error) {
	fail := func(err error, indexes ...int) {
		for _, i := range indexes {
			failed[i] = fmt.Errorf("publish to %s: %w", topic, err)
		}
	}
	if topic == "" {
		fail(errors.New("the letter names no topic"), indexes...)
		return
	}
	to := p.Sink(topic)
	msgs := make([]*message.Message, len(indexes))
	for n, i := range indexes {
		msgs[n] = batch[i].Message()
	}
	err := to.Publish(ctx, msgs...)
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
		if err = to.Publish(ctx, batch[i].Message()); err != nil {
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
