package kafka

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// enricher is a plugin that writes three topics: the two outputs of its route, and one that it
// declares because a service of its own writes it.
type enricher struct {
	kafka  *Plugin
	prefix string
	newer  bool // a version that writes one more topic
}

func (enricher) Name() string { return "enricher" }

func (e enricher) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "orders", From: e.kafka.Source(e.prefix+"orders", e.prefix),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			return []*message.Message{m, pipeline.SendTo(m, "audit")}, nil
		},
		To:      e.kafka.Sink(e.prefix + "enriched"),
		Outputs: map[string]pipeline.Sink{"audit": e.kafka.Sink(e.prefix + "audit")},
		Policy: pipeline.Policy{
			DeadLetter: e.kafka.Sink(e.prefix + "dead"),
			Retry:      pipeline.RetryVia(e.kafka, e.prefix+"retry", e.prefix+"retry", 1, pipeline.Backoff{First: time.Millisecond}),
		},
	})
	r.Endpoint(pipeline.UseWrites, pipeline.Endpoint{Kind: Kind, Name: e.prefix + "bills"})
	r.Endpoint(pipeline.UseFollows, pipeline.Endpoint{Kind: Kind, Name: e.prefix + "prices"})
	if e.newer {
		r.Endpoint(pipeline.UseWrites, pipeline.Endpoint{Kind: Kind, Name: e.prefix + "newer"})
	}
	// These are no topics that can be created.
	r.Endpoint(pipeline.UseWrites, pipeline.Endpoint{Kind: Kind, Name: e.prefix + "<country>"})
	r.Endpoint(pipeline.UseWrites, pipeline.Endpoint{Kind: "redis-stream", Name: e.prefix + "stream"})
	return nil
}

// enricherTopics returns the topics of an enricher.
func enricherTopics(prefix string) (names []string) {
	for _, name := range []string{"orders", "enriched", "audit", "retry", "dead", "prices", "bills", "newer"} {
		names = append(names, prefix+name)
	}
	return names
}

// runEnricher runs a command of a binary with an enricher, where topics are not created on first use.
func runEnricher(ctx context.Context, brokers []string, e enricher, args ...string) (code int, stdout, stderr string) {
	p := New()
	e.kafka = p
	quick(&p.config)
	p.config.CreateTopics = false
	var out, errs bytes.Buffer
	code = app.Main(ctx, app.Options{
		Name: "shop", Plugins: []pipeline.Plugin{p, e}, Args: args, Stdout: &out, Stderr: &errs,
		Environ: []string{"SHOP__PLUGINS__KAFKA__PARTITIONS=2", "SHOP__PLUGINS__KAFKA__BROKERS=" + strings.Join(brokers, ",")},
	})
	return code, out.String(), errs.String()
}

// Every topic that a plugin writes or follows is listed, created and needed at the start: the outputs
// of its routes, their retry and dead-letter topics, and those that it declares itself.
func TestEveryDeclaredTopicIsCheckedAndCreated(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		all := enricherTopics(prefix)
		t.Cleanup(func() { deleteTopics(t, admin, all...) })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a run does not end by itself
		defer cancel()
		report := func(args ...string) (code int, r topicsReport) {
			code, out, errs := runEnricher(ctx, brokers, enricher{prefix: prefix}, append(args, "--json")...)
			require.NoError(t, json.Unmarshal([]byte(out), &r), "%s%s", out, errs)
			return code, r
		}

		// Two of the topics exist.
		require.NoError(t, admin.ensureTopics(ctx, prefix+"orders", prefix+"enriched"))
		code, _, errs := runEnricher(ctx, brokers, enricher{prefix: prefix}, "run")
		require.Equal(t, app.ExitUnavailable, code, errs)
		for _, missing := range []string{
			prefix + "audit (output of orders, orders.retry)", prefix + "bills (output of plugin enricher)", prefix + "prices (source of plugin enricher)",
		} {
			require.Contains(t, errs, missing)
		}
		require.Contains(t, errs, `the command "topics create" creates the topics of all routes and plugins`)
		require.NotContains(t, errs, "country")

		code, r := report("topics")
		require.Equal(t, app.ExitBad, code)
		listed := map[string]topicStatus{}
		for _, topic := range r.Topics {
			listed[strings.TrimPrefix(topic.Name, prefix)] = *topic
		}
		require.Len(t, listed, len(all)-1)
		require.Equal(t, []topicUse{{Role: roleOutput, Route: "orders"}, {Role: roleOutput, Route: "orders.retry"}}, listed["audit"].Uses)
		require.Equal(t, []topicUse{{Role: roleOutput, Plugin: "enricher"}}, listed["bills"].Uses)
		require.Equal(t, []string{"the topic does not exist"}, listed["prices"].Problems)

		// What the error of the start advises is enough.
		code, r = report("topics", "create", "--why", "a new route")
		require.Equal(t, app.ExitOK, code)
		var created []string
		for _, topic := range r.Created {
			created = append(created, topic.Name)
		}
		require.ElementsMatch(t, []string{prefix + "audit", prefix + "retry", prefix + "dead", prefix + "bills", prefix + "prices"}, created)
		code, r = report("topics")
		require.Equal(t, app.ExitOK, code, r)

		// One topic is missing, which no route has.
		code, _, errs = runEnricher(ctx, brokers, enricher{prefix: prefix, newer: true}, "run")
		require.Equal(t, app.ExitUnavailable, code, errs)
		require.Contains(t, errs, "kafka: topics are missing: "+prefix+"newer (output of plugin enricher); "+creatingCommand)
	})
}

// The advice of a publish to a missing topic is true: it names the command only when the command
// creates that topic.
func TestTheAdviceForAMissingTopic(t *testing.T) {
	t.Parallel()
	p := New()
	quick(&p.config)
	p.config.Brokers, p.config.CreateTopics = kfakeServer().brokers(t), false
	_, err := pipeline.NewRegistry(pipeline.Env{}, p, enricher{kafka: p})
	require.NoError(t, err)
	for topic, advice := range map[string]string{
		"enriched": creatingCommand, "audit": creatingCommand, "retry": creatingCommand, "bills": creatingCommand, "other": creatingOther, "<country>": creatingOther,
	} {
		require.Equal(t, advice, p.howToCreate(topic), topic)
	}
	require.NoError(t, service{p}.Start(t.Context()), "without the check of the topics")
	t.Cleanup(func() { require.NoError(t, service{p}.Stop(context.Background())) })
	for topic, advice := range map[string]string{"audit": creatingCommand, "other": creatingOther} {
		err := p.Sink(topic).Publish(t.Context(), texts("1", "2")...)
		require.ErrorIs(t, err, sarama.ErrUnknownTopicOrPartition, topic)
		require.ErrorContains(t, err, "("+advice+")", topic)
	}
}

// A route writes both topics, each with its own messages, and the header of neither says so.
func TestARouteWritesTwoTopics(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		reader := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		t.Cleanup(func() { deleteTopics(t, reader, enricherTopics(prefix)...) })
		p := New()
		quick(&p.config)
		p.config.Brokers = brokers
		pipelinetest.Start(t, p, enricher{kafka: p, prefix: prefix})
		publish(t, reader, prefix+"orders", texts("one")...)
		for _, topic := range []string{"enriched", "audit"} {
			_, out := subscribe(t, reader.Source(prefix+topic, prefix), pipeline.Flow{})
			m := next(t, out)
			m.Ack()
			require.Equal(t, "one", string(m.Payload), topic)
			for name, value := range m.Metadata {
				require.NotContains(t, name+value, "audit")
			}
		}
	})
}
