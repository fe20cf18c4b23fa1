package kafka

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// server is one kind of Kafka that a test runs on.
type server struct {
	kind    string // kfake or kafka: the last path element of the subtest
	brokers func(t testing.TB) []string
}

func kfakeServer() server {
	return server{"kfake", func(t testing.TB) []string {
		tier.Embedded(t)
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		return cluster.ListenAddrs()
	}}
}

func realServer() server {
	return server{"kafka", func(t testing.TB) []string {
		return strings.Split(tier.Real(t, "kafka"), ",")
	}}
}

// onEach runs test on the embedded and on the real server.
func onEach(t *testing.T, test func(t *testing.T, brokers []string)) {
	for _, s := range []server{kfakeServer(), realServer()} {
		t.Run(s.kind, func(t *testing.T) {
			t.Parallel()
			test(t, s.brokers(t))
		})
	}
}

// quick are settings under which a test need not wait.
func quick(c *Config) {
	c.HeartbeatInterval = 100 * time.Millisecond
	c.SessionTimeout = 30 * time.Second // a busy machine must not lose its members
	c.RebalanceTimeout = 30 * time.Second
	c.DrainTimeout = 20 * time.Second // a machine may stand still while handlers end
	c.CloseTimeout = time.Second
	c.CommitInterval = 100 * time.Millisecond
	c.NackBackoff = pipeline.Backoff{First: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	c.ReconnectBackoff = pipeline.Backoff{First: 20 * time.Millisecond, Max: 200 * time.Millisecond}
	c.Partitions = 4
	c.PublishTimeout = 2 * time.Minute // a busy machine creates topics slowly
}

// start returns a running plugin on brokers, stopped at the test's end.
func start(t testing.TB, brokers []string, adapt ...func(*Config)) *Plugin {
	t.Helper()
	return startAs(t, "test", brokers, adapt...)
}

// startAs starts the plugin of an instance that has a configured name.
func startAs(t testing.TB, instance string, brokers []string, adapt ...func(*Config)) *Plugin {
	t.Helper()
	p := New()
	p.ends = endTimes{every: 100 * time.Millisecond, openAfter: 2 * time.Second, repeat: time.Hour}
	c := p.Settings().(*Config)
	quick(c)
	c.Brokers = brokers
	for _, f := range adapt {
		f(c)
	}
	require.NoError(t, c.Validate())
	_, err := pipeline.NewRegistry(pipeline.Env{Instance: instance, InstanceConfigured: true, Logger: pipelinetest.Logger(t)}, p)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	require.NoError(t, service{p}.Start(ctx))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		require.NoError(t, service{p}.Stop(ctx))
	})
	return p
}

// topicFor returns a topic (and group) name that no other run uses, and removes the topic at the
// end.
func topicFor(t testing.TB, p *Plugin) string {
	t.Helper()
	name := "kafka-test-" + watermill.NewShortUUID()
	t.Cleanup(func() { deleteTopics(t, p, name) })
	return name
}

// subscribe opens a source and reads it; it is closed at the test's end if it is not by then.
func subscribe(t testing.TB, src pipeline.Source, f pipeline.Flow) (pipeline.Subscription, <-chan *message.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	sub, err := src.Open(ctx, f)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	out, err := sub.Subscribe(context.Background(), "")
	require.NoError(t, err)
	return sub, out
}

func publish(t testing.TB, p *Plugin, topic string, msgs ...*message.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	require.NoError(t, p.Sink(topic).Publish(ctx, msgs...))
}

// texts makes one message of each payload.
func texts(payloads ...string) []*message.Message {
	msgs := make([]*message.Message, len(payloads))
	for i, text := range payloads {
		msgs[i] = message.NewMessage(watermill.NewUUID(), []byte(text))
	}
	return msgs
}

// next returns the next message, which must come soon.
func next(t testing.TB, out <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-out:
		require.True(t, ok, "the channel is closed")
		return m
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "no message")
		return nil
	}
}

// nothing fails when a message comes within a moment.
func nothing(t testing.TB, out <-chan *message.Message, within time.Duration) {
	t.Helper()
	select {
	case m, ok := <-out:
		if ok {
			require.FailNow(t, "unexpected message", "%s from %s", m.Payload, pipeline.DeliveryFrom(m.Context()))
		}
	case <-time.After(within):
	}
}

// newRandom returns a source of numbers that a seed repeats.
func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// ensureTopics creates the missing ones of topics, as their first use does.
func (p *Plugin) ensureTopics(ctx context.Context, topics ...string) error {
	live, err := p.connected()
	if err != nil {
		return err
	}
	return live.ensure(ctx, topics...)
}
