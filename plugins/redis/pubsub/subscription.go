package pubsub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/leftover"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// SubscriptionOptions are the options of all readers of a Subscription.
type SubscriptionOptions struct {
	OwnGroup     bool          // the group belongs to the reader alone, and is removed at the end
	CloseTimeout time.Duration // how long Close waits for messages in flight
	Logger       *slog.Logger  // may be nil
	Metrics      *poll.Metrics // may be nil
}

// Subscription is one reader with a channel, or several readers (the shards of a domain) that share
// a channel.
type Subscription struct {
	readers      []*poll.Reader
	out          chan *message.Message
	log          *slog.Logger
	closeTimeout time.Duration
	wg           sync.WaitGroup // closer of out, watcher of a context
	closed       chan struct{}  // closed: out is closed

	mu         sync.Mutex
	subscribed bool
}

// Open creates streams and groups, and starts a reader per stream. A group starts at 0 and is
// created again whenever it is missing. A reader tries again to create its stream; Open fails when
// no stream can be created.
func Open(ctx context.Context, c goredis.UniversalClient, so SubscriptionOptions, streams ...poll.Options) (*Subscription, error) {
	s := &Subscription{out: make(chan *message.Message), log: so.Logger, closeTimeout: so.CloseTimeout, closed: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.createGroups(ctx, c, streams); err != nil {
		return nil, err
	}
	var marks []leftover.Mark
	scheduler := &poll.Scheduler{}
	for _, o := range streams {
		o.Scheduler = scheduler
		o.Absent = func(ctx context.Context) (bool, error) { return true, CreateGroup(ctx, c, o.Stream, o.Group) }
		r := poll.NewReader(c, o, s.out, s.log, so.Metrics)
		r.Start()
		s.readers = append(s.readers, r)
		if o.ReclaimInterval > 0 {
			marks = append(marks, leftover.Mark{Stream: o.Stream, Group: o.Group, Consumer: o.Consumer, OwnGroup: so.OwnGroup})
		}
	}
	var remover *leftover.Remover
	if len(marks) > 0 {
		remover = leftover.Start(c, s.log, marks...)
	}
	s.wg.Go(func() {
		for i, r := range s.readers {
			<-r.Done()
			if so.OwnGroup {
				s.destroyGroup(c, streams[i])
			}
		}
		close(s.out)
		close(s.closed)
		if remover != nil {
			remover.Stop()
		}
	})
	return s, nil
}

// Readers returns the readers, in the order of the streams.
func (s *Subscription) Readers() []*poll.Reader { return s.readers }

// OnClosed has f called when the channel is closed. Close waits for it.
func (s *Subscription) OnClosed(f func()) {
	s.wg.Go(func() {
		<-s.closed
		f()
	})
}

// createGroups creates all streams and groups at once. It returns an error when it could create
// none.
func (s *Subscription) createGroups(ctx context.Context, c goredis.UniversalClient, streams []poll.Options) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	errs := make([]error, len(streams))
	var wg sync.WaitGroup
	for i, o := range streams {
		wg.Go(func() { errs[i] = CreateGroup(ctx, c, o.Stream, o.Group) })
	}
	wg.Wait()
	if !slices.Contains(errs, nil) {
		return errors.Join(errs...)
	}
	for i, err := range errs {
		if err != nil {
			s.log.ErrorContext(ctx, "shard not read for now, the others are", slog.String(logs.Stream, streams[i].Stream), logs.Err(err))
		}
	}
	return nil
}

func (s *Subscription) destroyGroup(c goredis.UniversalClient, o poll.Options) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.XGroupDestroy(ctx, o.Stream, o.Group).Err(); err != nil {
		s.log.Warn("the subscription's own group was not removed", logs.Err(err))
	}
}

// CreateGroup creates stream and group, at 0. An existing group is success.
func CreateGroup(ctx context.Context, c goredis.UniversalClient, stream, group string) error {
	err := c.XGroupCreateMkStream(ctx, stream, group, "0").Err()
	if poll.IsFull(err) && hasGroup(ctx, c, stream, group) {
		return nil // a full server refuses the command also for an existing group
	}
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return poll.WithRemedy(fmt.Errorf("create group %s of stream %s: %w", group, stream, err))
	}
	return nil
}

// hasGroup reports whether a stream has a group.
func hasGroup(ctx context.Context, c goredis.UniversalClient, stream, group string) bool {
	groups, err := c.XInfoGroups(ctx, stream).Result()
	return err == nil && slices.ContainsFunc(groups, func(g goredis.XInfoGroup) bool { return g.Name == group })
}

// closeWith closes the subscription when ctx ends.
func (s *Subscription) closeWith(ctx context.Context) {
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

// IsClosed reports whether the channel is closed.
func (s *Subscription) IsClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Subscribe returns the messages. The topic is ignored; when ctx ends the subscription is closed.
func (s *Subscription) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribed {
		return nil, errors.New("redis: a subscription can be subscribed to once")
	}
	s.subscribed = true
	s.closeWith(ctx)
	return s.out, nil
}

// Drain stops reading, releases entries that were not started, waits for those in flight and closes
// the channel.
func (s *Subscription) Drain(ctx context.Context) error {
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
func (s *Subscription) Close() error {
	s.drainForClose()
	s.wg.Wait()
	return nil
}

func (s *Subscription) drainForClose() {
	ctx, cancel := context.WithTimeout(context.Background(), s.closeTimeout)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		s.log.Warn("closed with messages in flight, they are delivered again elsewhere", logs.Err(err))
	}
}

var _ pipeline.Subscription = (*Subscription)(nil)
