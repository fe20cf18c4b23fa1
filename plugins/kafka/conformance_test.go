package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// TestPubSub is Watermill's own suite for a Pub/Sub, in strict order (window 1) and windowed (256).
func TestPubSub(t *testing.T) {
	t.Parallel()
	for _, window := range []int{1, 256} {
		t.Run(fmt.Sprintf("window_%d", window), func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, brokers []string) {
				conform(t, brokers, window)
			})
		})
	}
}

func conform(t *testing.T, brokers []string, window int) {
	p := start(t, brokers)
	features := tests.Features{
		ConsumerGroups: true,
		// Kafka's groups deliver at least once: the window of a member that crashes runs again.
		ExactlyOnceDelivery: false,
		// To the suite, "in order" means that a message follows the ack of the one before. That
		// needs a window of one. It needs one key, because Kafka orders a partition and not a
		// topic.
		GuaranteedOrder: window == 1,
		Persistent:      true,
		// A group goes on where it committed: a new subscriber of the same group gets no old
		// messages.
		NewSubscriberReceivesOldMessages: false,
		// A context does not travel over the wire.
		ContextPreserved: false,
		// Restarting the shared server would disturb the other tests; TestReconnect does it on its
		// own.
		RestartServiceCommand: nil,
		// 50 members that join one group cost minutes of rebalances on two cores, and test the
		// broker. With 10 the same paths are taken.
		ForceShort: true,
	}
	constructor := func(_ *testing.T, group string) (message.Publisher, message.Subscriber) {
		pub := &suitePublisher{p: p}
		if window == 1 {
			pub.key = "one"
		}
		sub := &suiteSubscriber{p: p, group: group, flow: pipeline.Flow{Window: window}}
		t.Cleanup(func() { require.NoError(t, sub.Close()) }) // the suite leaves some open
		return pub, sub
	}
	t.Cleanup(func() { deleteTopics(t, p, p.knownTopics()...) })
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		return constructor(t, "kafka-test-conformance")
	}, constructor)
}

// suitePublisher is our Sinks as one message.Publisher.
type suitePublisher struct {
	p      *Plugin
	key    string
	mu     sync.Mutex
	closed bool
}

func (s *suitePublisher) Publish(topic string, msgs ...*message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("publisher closed")
	}
	if s.key != "" {
		for _, m := range msgs {
			m.Metadata.Set(pipeline.MetaKey, s.key)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return s.p.Sink(topic).Publish(ctx, msgs...)
}

func (s *suitePublisher) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// suiteSubscriber opens a Source for every Subscribe, because a Subscription has one topic.
type suiteSubscriber struct {
	p     *Plugin
	group string
	flow  pipeline.Flow

	mu   sync.Mutex
	subs []pipeline.Subscription
}

func (s *suiteSubscriber) SubscribeInitialize(topic string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return s.p.ensureTopics(ctx, topic)
}

func (s *suiteSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, err := s.p.Source(topic, s.group+"-"+topic).Open(ctx, s.flow)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.subs = append(s.subs, sub)
	s.mu.Unlock()
	return sub.Subscribe(ctx, topic)
}

func (s *suiteSubscriber) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, sub := range s.subs {
		errs = append(errs, sub.Close())
	}
	return errors.Join(errs...)
}

var _ message.SubscribeInitializer = (*suiteSubscriber)(nil)

func TestConformanceHelpersClose(t *testing.T) {
	p := &suitePublisher{}
	require.NoError(t, p.Close())
	require.Error(t, p.Publish("topic"))
}
