package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// TestPubSub is Watermill's own suite, with a concurrency of 1 and with a higher one. All
// subscribers of a run have one group, so that they share the stream.
func TestPubSub(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
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
					// Two subscribers of one group share a stream, and its order, as with Kafka
					// partitions.
					GuaranteedOrderWithSingleSubscriber: mode.ordered,
					Persistent:                          true,
					// Redis Streams are at least once: a re-sent XADD is a second entry.
					ExactlyOnceDelivery: false,
					// A new subscriber of the same group gets what the group has not acknowledged,
					// no more. The feature is tested by TestNewGroupReceivesOldMessages, with a
					// group each.
					NewSubscriberReceivesOldMessages: false,
					// The suite's TestReconnect reads its list of what was published while a
					// goroutine of its own still appends to it: "received: 10000, sent: 9999".
					// TestReconnect below is that test without the race.
					RestartServiceCommand: nil,
					GenerateTopicFunc:     func(c tests.TestContext) string { return suite.prefix + string(c.TestID) },
				}, suite.sharedGroup, suite.withGroup)
			})
		}
	})
}

// TestNewGroupReceivesOldMessages is the suite's test for it, with subscribers that have no group
// in common.
func TestNewGroupReceivesOldMessages(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		suite := newSuite(t, s, 4)
		topic := func(c tests.TestContext) string { return suite.prefix + string(c.TestID) }
		tests.TestNewSubscriberReceivesOldMessages(t,
			tests.TestContext{TestID: tests.NewTestID(), Features: tests.Features{NewSubscriberReceivesOldMessages: true, GenerateTopicFunc: topic}},
			func(t *testing.T) (message.Publisher, message.Subscriber) { return suite.withGroup(t, "") })
	})
}

// twice publishes each message twice, as a client does that re-sends a pipeline.
type twice struct{ message.Publisher }

func (p twice) Publish(topic string, messages ...*message.Message) error {
	return errors.Join(p.Publisher.Publish(topic, messages...), p.Publisher.Publish(topic, messages...))
}

// TestRepeatedMessages ends while the suite's pumps still hold repeated messages, as a redelivery on
// a busy machine has it. TestMain then finds nothing of ours among the goroutines that are left.
func TestRepeatedMessages(t *testing.T) {
	s := redistest.Mini(t)
	suite := newSuite(t, s, 1)
	features := tests.Features{
		ConsumerGroups: true, ForceShort: true,
		GenerateTopicFunc: func(c tests.TestContext) string { return suite.prefix + string(c.TestID) },
	}
	tests.TestConcurrentSubscribe(t, tests.TestContext{TestID: tests.NewTestID(), Features: features},
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			pub, sub := suite.sharedGroup(t)
			return twice{pub}, sub
		})
}

// TestReconnect publishes from many goroutines and subscribes while every connection of both is cut
// in the middle of whatever it carries, again and again.
func TestReconnect(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p := redistest.NewProxy(t, s.Addr)
		suite := newSuite(t, redistest.Server{Addr: p.Addr()}, 8)
		pub, sub := suite.sharedGroup(t)
		topic := suite.prefix + "reconnect"
		out, err := sub.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		const publishers, each = 50, 60
		var received atomic.Int64
		h := redistest.Handle(t, out, func(*message.Message) bool {
			if received.Add(1)%500 == 0 {
				p.Cut()
			}
			return true
		})
		var wg sync.WaitGroup
		for i := range publishers {
			wg.Go(func() {
				for j := range each {
					m := message.NewMessage("", fmt.Appendf(nil, "%d-%d", i, j))
					for pub.Publish(topic, m) != nil { // until it is in; it may be in twice then
						if t.Context().Err() != nil {
							return
						}
					}
				}
			})
		}
		wg.Wait()
		h.WaitFor(t, publishers*each)
		require.NoError(t, sub.Close())
		pending, err := suite.c.XPending(t.Context(), topic, suite.group).Result()
		require.NoError(t, err)
		require.Zero(t, pending.Count)
		entries, err := suite.c.XLen(t.Context(), topic).Result()
		require.NoError(t, err)
		require.Equal(t, entries, received.Load(), "every entry is delivered once, whatever is cut")
	})
}

type suite struct {
	c      goredis.UniversalClient
	slots  int
	group  string
	prefix string // of topics
}

func newSuite(t *testing.T, s redistest.Server, slots int) *suite {
	id := watermill.NewULID()
	su := &suite{c: s.Client(t), slots: slots, group: "suite-" + id, prefix: "redis-suite:" + id + ":"}
	t.Cleanup(su.deleteTopics)
	return su
}

func (s *suite) sharedGroup(t *testing.T) (message.Publisher, message.Subscriber) {
	return s.withGroup(t, s.group)
}

func (s *suite) withGroup(t *testing.T, group string) (message.Publisher, message.Subscriber) {
	pub, err := pubsub.NewPublisher(s.c, pubsub.PublisherConfig{})
	require.NoError(t, err)
	sub, err := pubsub.NewSubscriber(s.c, pubsub.SubscriberConfig{
		Group: group,
		Config: poll.Config{
			Concurrency: s.slots, PollInterval: 20 * time.Millisecond, InitialPollInterval: time.Millisecond,
			MinIdle: time.Second, MaxRedeliveries: 3,
			Redelivery: pipeline.Backoff{First: 5 * time.Millisecond, Max: 20 * time.Millisecond},
		},
		ReclaimInterval: 200 * time.Millisecond,
		CloseTimeout:    time.Second,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	return pub, sub
}

func (s *suite) deleteTopics() {
	ctx := context.Background()
	keys := s.c.Scan(ctx, 0, s.prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		s.c.Del(ctx, keys.Val())
	}
}
