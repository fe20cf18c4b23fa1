package redispoll_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// TestPubSub is Watermill's own suite, with one slot and with many, always with one group for all
// subscribers of a run, so that the tests which restart or multiply subscribers really share the stream.
func TestPubSub(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		for _, mode := range []struct {
			name    string
			slots   int
			ordered bool
		}{
			{"sequential", 1, true},
			// Sixteen messages at once: nothing promises their order.
			{"concurrent", 16, false},
		} {
			t.Run(mode.name, func(t *testing.T) {
				suite := newSuite(t, s, mode.slots)
				tests.TestPubSub(t, tests.Features{
					ConsumerGroups:  true,
					GuaranteedOrder: mode.ordered,
					// Two subscribers of one group share a stream, and its order, as with Kafka partitions.
					GuaranteedOrderWithSingleSubscriber: mode.ordered,
					Persistent:                          true,
					// Redis Streams are at least once: a re-sent XADD is a second entry.
					ExactlyOnceDelivery: false,
					// A new subscriber of the same group gets what the group has not acknowledged, no more. The
					// feature is tested by TestNewGroupReceivesOldMessages, with a group each.
					NewSubscriberReceivesOldMessages: false,
					// Cutting every connection in the middle of a command is the hard part of a restart.
					RestartServiceCommand: suite.proxy.cutBySignal(t),
					GenerateTopicFunc:     func(c tests.TestContext) string { return suite.prefix + string(c.TestID) },
				}, suite.sharedGroup, suite.withGroup)
			})
		}
	})
}

// TestNewGroupReceivesOldMessages is the suite's test for it, with subscribers that have no group in common.
func TestNewGroupReceivesOldMessages(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		suite := newSuite(t, s, 4)
		topic := func(c tests.TestContext) string { return suite.prefix + string(c.TestID) }
		tests.TestNewSubscriberReceivesOldMessages(t,
			tests.TestContext{TestID: tests.NewTestID(), Features: tests.Features{NewSubscriberReceivesOldMessages: true, GenerateTopicFunc: topic}},
			func(t *testing.T) (message.Publisher, message.Subscriber) { return suite.withGroup(t, "") })
	})
}

type suite struct {
	c      redis.UniversalClient
	proxy  *proxy
	slots  int
	group  string
	prefix string // of topics
}

func newSuite(t *testing.T, s server, slots int) *suite {
	p := newProxy(t, s.addr)
	behind := server{addr: p.addr()}
	id := watermill.NewULID()
	su := &suite{c: behind.client(t), proxy: p, slots: slots, group: "suite-" + id, prefix: "redispoll-suite:" + id + ":"}
	t.Cleanup(su.deleteTopics)
	return su
}

func (s *suite) sharedGroup(t *testing.T) (message.Publisher, message.Subscriber) {
	return s.withGroup(t, s.group)
}

func (s *suite) withGroup(t *testing.T, group string) (message.Publisher, message.Subscriber) {
	pub, err := redispoll.NewPublisher(s.c, redispoll.PublisherConfig{})
	require.NoError(t, err)
	sub, err := redispoll.NewSubscriber(s.c, redispoll.SubscriberConfig{
		Group: group,
		ReaderConfig: redispoll.ReaderConfig{
			Slots: s.slots, PollInterval: 20 * time.Millisecond, FirstPoll: time.Millisecond,
			MinIdle: time.Second, MaxRedeliveries: 3,
			Redelivery: pipeline.Backoff{First: 5 * time.Millisecond, Max: 20 * time.Millisecond},
		},
		ReclaimInterval: 200 * time.Millisecond,
		CloseTimeout:    time.Second,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) }) // some tests of the suite leave theirs open
	return pub, sub
}

func (s *suite) deleteTopics() {
	ctx := context.Background()
	keys := s.c.Scan(ctx, 0, s.prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		s.c.Del(ctx, keys.Val())
	}
}
