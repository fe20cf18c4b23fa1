package pubsub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
)

// SubscriberConfig has the options of a Subscriber. The zero value is valid.
type SubscriberConfig struct {
	poll.Config
	// Group is the consumer group. Empty: each subscription has its own group, which receives all
	// entries of the stream from the beginning. Close removes it. The group of a killed process is
	// removed after an hour, unless ReclaimInterval is negative.
	Group string
	// Consumer is the prefix of the consumers' names. Empty: a random one. With a fixed prefix,
	// unique among live processes, a restarted process resumes its pending entries at once.
	Consumer string
	// ReclaimInterval is the time between two claims of idle entries. Zero: a minute. Negative: no
	// claims, and no mark in Redis, so nothing is removed after its process was killed.
	ReclaimInterval time.Duration
	// CloseTimeout is how long Close waits for messages in flight. After that their contexts are
	// cancelled, and other consumers receive them. Zero: 5s.
	CloseTimeout time.Duration
	// Logger and Metrics may be nil.
	Logger  *slog.Logger
	Metrics *poll.Metrics
}

// The defaults of SubscriberConfig.
const (
	DefaultReclaimInterval = time.Minute
	DefaultCloseTimeout    = 5 * time.Second
)

// Subscriber is a message.Subscriber on Redis Streams that never sends a blocking command. With a
// concurrency of 1, messages come in order. Each Subscribe has its own reader.
type Subscriber struct {
	c   goredis.UniversalClient
	cfg SubscriberConfig

	mu     sync.Mutex
	subs   []*Subscription
	n      int
	closed bool
}

// NewSubscriber returns a Subscriber. The client stays the caller's: Close doesn't close it.
func NewSubscriber(c goredis.UniversalClient, cfg SubscriberConfig) (*Subscriber, error) {
	if c == nil {
		return nil, errors.New("redis: subscriber: client is nil")
	}
	if cfg.Consumer == "" {
		cfg.Consumer = watermill.NewShortUUID()
	}
	cfg.ReclaimInterval = cmp.Or(cfg.ReclaimInterval, DefaultReclaimInterval)
	if cfg.CloseTimeout <= 0 {
		cfg.CloseTimeout = DefaultCloseTimeout
	}
	return &Subscriber{c: c, cfg: cfg}, nil
}

// SubscribeInitialize creates stream and group, so that messages published from now on are
// delivered.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if s.cfg.Group == "" {
		return nil // Subscribe creates the group, at the beginning
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return CreateGroup(ctx, s.c, topic, s.cfg.Group)
}

// Subscribe creates stream and group when they are missing, and reads. When ctx ends the
// subscription is closed as by Close; messages in flight keep a living context for up to
// CloseTimeout.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("redis: subscriber is closed")
	}
	o := poll.Options{
		Config: s.cfg.Config, Stream: topic, Group: s.cfg.Group, Consumer: fmt.Sprintf("%s-%d", s.cfg.Consumer, s.n),
		ReclaimInterval: s.cfg.ReclaimInterval, Base: context.WithoutCancel(ctx), CancelUnfinished: true,
	}
	if o.Group == "" {
		o.Group = "own-" + o.Consumer
	}
	s.subs = slices.DeleteFunc(s.subs, (*Subscription).IsClosed)
	sub, err := Open(ctx, s.c, SubscriptionOptions{
		OwnGroup: s.cfg.Group == "", CloseTimeout: s.cfg.CloseTimeout, Logger: s.cfg.Logger, Metrics: s.cfg.Metrics,
	}, o)
	if err != nil {
		return nil, err
	}
	s.n++
	s.subs = append(s.subs, sub)
	sub.closeWith(ctx)
	return sub.out, nil
}

// Close drains all subscriptions at once, bounded by CloseTimeout, and closes their channels.
// It is idempotent.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	subs := s.subs
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, sub := range subs {
		wg.Go(func() { _ = sub.Close() }) // Close of a subscription never fails
	}
	wg.Wait()
	return nil
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)
