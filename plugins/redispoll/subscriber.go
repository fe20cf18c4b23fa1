package redispoll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

// SubscriberConfig is a ReaderConfig for plain Watermill use; Stream is the topic of Subscribe.
type SubscriberConfig struct {
	// Group is the consumer group. Empty: every subscription gets a group of its own, which is removed when it is
	// closed, and sees all that is in the stream, from the beginning. The group of a killed process is removed after an
	// hour, unless ReclaimInterval is negative.
	Group string
	// Consumer is the prefix of the consumers' names. Empty: a random one. With a fixed one, unique
	// among live processes, a restarted process takes up at once what it held.
	Consumer string
	// ReaderConfig has the rest; its Stream, Group and Consumer are not used.
	ReaderConfig
	// ReclaimInterval is how often idle entries of others are looked for. Zero: a minute; negative: never, and then the
	// subscription is not marked in Redis either, so nothing of it is removed after its process was killed.
	ReclaimInterval time.Duration
	// CloseTimeout is how long Close waits for messages in hand. Then their contexts are cancelled and they
	// are delivered again elsewhere. Zero: 5s.
	CloseTimeout time.Duration
	// Logger and Metrics may be nil.
	Logger  *slog.Logger
	Metrics *Metrics
}

// Subscriber is a message.Subscriber on Redis Streams that never sends a blocking command. With one slot
// messages come one after another, in order; with N slots N at a time. Every Subscribe is a reader of its own.
type Subscriber struct {
	c   redis.UniversalClient
	cfg SubscriberConfig

	mu     sync.Mutex
	subs   []*subscription
	n      int
	closed bool
}

// NewSubscriber returns a Subscriber. The client stays the caller's: Close doesn't close it.
func NewSubscriber(c redis.UniversalClient, cfg SubscriberConfig) (*Subscriber, error) {
	if c == nil {
		return nil, errors.New("redispoll: subscriber: client is nil")
	}
	if cfg.Consumer == "" {
		cfg.Consumer = watermill.NewShortUUID()
	}
	d := DefaultConfig()
	if cfg.ReclaimInterval == 0 {
		cfg.ReclaimInterval = d.ReclaimInterval
	}
	cfg.CloseTimeout = positive(cfg.CloseTimeout, d.CloseTimeout)
	return &Subscriber{c: c, cfg: cfg}, nil
}

// SubscribeInitialize creates stream and group, so that what is published from now on is delivered.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if s.cfg.Group == "" {
		return nil // a group of its own is made by Subscribe and starts at the beginning anyway
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return createGroup(ctx, s.c, topic, s.cfg.Group)
}

// Subscribe creates stream and group when they are missing, and reads. When ctx ends the subscription is
// closed as by Close; messages in hand keep a living context for up to CloseTimeout.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("redispoll: subscriber is closed")
	}
	cfg := s.cfg.ReaderConfig
	cfg.Stream, cfg.Group, cfg.Consumer = topic, s.cfg.Group, fmt.Sprintf("%s-%d", s.cfg.Consumer, s.n)
	if cfg.Group == "" {
		cfg.Group = "own-" + cfg.Consumer
	}
	s.subs = slices.DeleteFunc(s.subs, (*subscription).isClosed)
	sub, err := openSubscription(ctx, s.c, []ReaderConfig{cfg}, subscriptionOptions{
		ownGroup: s.cfg.Group == "",
		base:     context.WithoutCancel(ctx), cancelLeft: true, closeTimeout: s.cfg.CloseTimeout,
		reclaim: s.cfg.ReclaimInterval, log: s.cfg.Logger, metrics: s.cfg.Metrics,
	})
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

// subscriptionOptions are what differs between a Source's subscription and a Subscriber's.
type subscriptionOptions struct {
	ownGroup     bool // remove the group at the end
	base         context.Context
	cancelLeft   bool
	closeTimeout time.Duration
	reclaim      time.Duration // zero or less: no claimer
	log          *slog.Logger
	metrics      *Metrics
}

// subscription is one reader with a channel of its own, or the readers of a domain's shards with a channel
// between them.
type subscription struct {
	readers      []*Reader
	out          chan *message.Message
	log          *slog.Logger
	closeTimeout time.Duration
	wg           sync.WaitGroup // claimers, closer of out, watcher of a context
	closed       chan struct{}  // out is closed

	mu         sync.Mutex
	subscribed bool
}

// openSubscription makes sure of streams and groups, and starts reading. A group begins at 0 and is made
// anew whenever it is gone. Of several streams, those that can't be had are left to their readers, which try on, as
// long as there is one that can.
func openSubscription(ctx context.Context, c redis.UniversalClient, cfgs []ReaderConfig, o subscriptionOptions) (*subscription, error) {
	s := &subscription{out: make(chan *message.Message), log: o.log, closeTimeout: o.closeTimeout, closed: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.createGroups(ctx, c, cfgs); err != nil {
		return nil, err
	}
	for _, cfg := range cfgs {
		s.readers = append(s.readers, s.read(c, cfg, o))
	}
	var sweeper *sweeper
	if o.reclaim > 0 {
		marks := make([]mark, len(cfgs))
		for i, cfg := range cfgs {
			marks[i] = mark{cfg.Stream, cfg.Group, cfg.Consumer, o.ownGroup}
		}
		sweeper = startSweeper(c, s.log, marks...)
	}
	s.wg.Go(func() {
		for _, r := range s.readers {
			<-r.Done()
			if o.ownGroup {
				destroyGroup(c, r)
			}
		}
		close(s.out)
		close(s.closed)
		if sweeper != nil {
			sweeper.stop()
		}
	})
	return s, nil
}

// read starts the reader of one stream.
func (s *subscription) read(c redis.UniversalClient, cfg ReaderConfig, o subscriptionOptions) *Reader {
	r := NewReader(c, cfg, s.out, Hooks{Absent: func(ctx context.Context) (bool, error) {
		return true, createGroup(ctx, c, cfg.Stream, cfg.Group)
	}}, o.log, o.metrics)
	r.base, r.cancelLeft = o.base, o.cancelLeft
	r.Start()
	if o.reclaim > 0 {
		k := &claimer{r: r, interval: o.reclaim}
		s.wg.Go(k.run)
	}
	return r
}

// createGroups makes streams and groups, all at once; the error says that none could be had.
func (s *subscription) createGroups(ctx context.Context, c redis.UniversalClient, cfgs []ReaderConfig) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	errs := make([]error, len(cfgs))
	var wg sync.WaitGroup
	for i, cfg := range cfgs {
		wg.Go(func() { errs[i] = createGroup(ctx, c, cfg.Stream, cfg.Group) })
	}
	wg.Wait()
	if !slices.Contains(errs, nil) {
		return errors.Join(errs...)
	}
	for i, err := range errs {
		if err != nil {
			s.log.ErrorContext(ctx, "shard not read for now, the others are", slog.String(pipeline.LogStream, cfgs[i].Stream), pipeline.Err(err))
		}
	}
	return nil
}

func destroyGroup(c redis.UniversalClient, r *Reader) {
	ctx, cancel := context.WithTimeout(context.Background(), finalFlush)
	defer cancel()
	if err := c.XGroupDestroy(ctx, r.cfg.Stream, r.cfg.Group).Err(); err != nil {
		r.log.Warn("the subscription's own group was not removed", pipeline.Err(err))
	}
}

// createGroup creates stream and group, at 0. An existing group is success.
func createGroup(ctx context.Context, c redis.UniversalClient, stream, group string) error {
	err := c.XGroupCreateMkStream(ctx, stream, group, "0").Err()
	if isFull(err) && hasGroup(ctx, c, stream, group) {
		return nil // a full server refuses the command even if there is nothing to create
	}
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return unusable(fmt.Errorf("create group %s of stream %s: %w", group, stream, err))
	}
	return nil
}

// hasGroup reports whether a stream has a group.
func hasGroup(ctx context.Context, c redis.UniversalClient, stream, group string) bool {
	groups, err := c.XInfoGroups(ctx, stream).Result()
	return err == nil && slices.ContainsFunc(groups, func(g redis.XInfoGroup) bool { return g.Name == group })
}

// closeWith closes the subscription when ctx ends.
func (s *subscription) closeWith(ctx context.Context) {
	if ctx.Done() == nil {
		return
	}
	s.wg.Go(func() {
		select {
		case <-ctx.Done():
			s.drainForClose()
		case <-s.closed:
		}
	})
}

func (s *subscription) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Subscribe returns the messages. The topic is ignored; when ctx ends the subscription is closed.
func (s *subscription) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribed {
		return nil, errors.New("redispoll: a subscription can be subscribed to once")
	}
	s.subscribed = true
	s.closeWith(ctx)
	return s.out, nil
}

// Drain stops reading, gives back what has not begun, waits for what is in hand and closes the channel.
func (s *subscription) Drain(ctx context.Context) error {
	errs := make([]error, len(s.readers))
	var wg sync.WaitGroup
	for i, r := range s.readers {
		wg.Go(func() { errs[i] = r.Drain(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	select {
	case <-s.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close drains within the close timeout and waits until everything has ended. Idempotent.
func (s *subscription) Close() error {
	s.drainForClose()
	s.wg.Wait()
	return nil
}

func (s *subscription) drainForClose() {
	ctx, cancel := context.WithTimeout(context.Background(), s.closeTimeout)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		s.log.Warn("closed with messages in hand, they are delivered again elsewhere", pipeline.Err(err))
	}
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)
