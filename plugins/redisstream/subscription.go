package redisstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/poll"
)

// subscription stands between the library's subscriber and the route: it gives messages a context
// that outlives the closing, and closes only when the message in flight is acknowledged.
type subscription struct {
	at       pipeline.Endpoint
	cfg      Config
	shared   func() goredis.UniversalClient // for everything that must not wait behind a blocking read
	watch    *watch
	consumer string
	unmark   func() // ends the mark of the consumer; nil without a group
	gate     func() bool
	log      *slog.Logger
	inner    *redisstream.Subscriber
	out      chan *message.Message

	stop       chan struct{} // closed: nothing new is taken
	stopOnce   func()
	abandoned  chan struct{} // closed: the handler is not waited for
	abandon    func()
	done       chan struct{}      // closed: everything has ended
	leftID     string             // the entry of a message that was left behind; read after done
	leftCancel context.CancelFunc // never called: its context lives on with its handler
	failed     chan error

	mu         sync.Mutex
	subscribed bool
}

// Subscribe returns the messages; the topic is ignored. When ctx ends the subscription is closed.
func (s *subscription) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribed {
		return nil, errors.New("redisstream: a subscription can be subscribed to once")
	}
	s.subscribed = true
	context.AfterFunc(ctx, s.stopOnce)
	return s.out, nil
}

// Drain takes nothing new, lets the message in flight finish and be acknowledged, releases what the
// library has read ahead, and closes the channel.
func (s *subscription) Drain(ctx context.Context) error {
	s.stopOnce()
	soft, cancel := ctx, func() {}
	if end, ok := ctx.Deadline(); ok { // closing and releasing need a little of it
		soft, cancel = context.WithDeadline(ctx, end.Add(-min(time.Second, time.Until(end)/5)))
	}
	defer cancel()
	select {
	case <-s.done:
	case <-soft.Done():
		s.abandon()
		select {
		case <-s.done:
		case <-ctx.Done():
			return fmt.Errorf("drain %s: %w", s.at, ctx.Err())
		}
	}
	if s.leftID != "" {
		return fmt.Errorf("drain %s: a message is still being handled: %w", s.at, context.DeadlineExceeded)
	}
	return nil
}

// Close drains within the close timeout. Idempotent.
func (s *subscription) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.CloseTimeout)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		s.log.Warn("closed with a message in flight, it is delivered again elsewhere", pipeline.Err(err))
	}
	<-s.done
	return nil
}

// pump passes messages on, one at a time, until stop.
func (s *subscription) pump(in <-chan *message.Message) {
	defer close(s.done)
	defer close(s.out)
	defer s.end()
	for s.openGate() {
		select {
		case msg, ok := <-in:
			if !ok {
				s.failed <- fmt.Errorf("%s: the library's subscription has ended by itself", s.at)
				return
			}
			if !s.pass(msg) {
				return
			}
		case <-s.stop:
			return
		}
	}
}

// openGate waits for the route's gate; false when the subscription ends.
func (s *subscription) openGate() bool {
	for s.gate != nil && !s.gate() {
		t := time.NewTimer(s.cfg.BlockTime)
		select {
		case <-t.C:
		case <-s.stop:
			t.Stop()
			return false
		}
	}
	return true
}

// pass takes one message through its deliveries; false ends the pump.
func (s *subscription) pass(inner *message.Message) bool {
	id := inner.Metadata.Get(entryID)
	origin := pipeline.Origin{
		Kind: poll.Kind, Source: s.at.Name, Group: s.at.Group, Key: inner.Metadata.Get(pipeline.MetaKey),
		Position: entry.Position(s.at.Name, id), Malformed: entry.Malformed(inner),
	}
	renew := time.NewTicker(max(s.cfg.MaxIdle/3, time.Millisecond))
	defer renew.Stop()
	for delivered := int64(1); ; delivered++ {
		msg := inner.Copy()
		delete(msg.Metadata, entryID)
		origin.Delivered = delivered
		ctx, cancel := context.WithCancel(pipeline.WithOrigin(context.Background(), origin))
		msg.SetContext(ctx)
		select {
		case s.out <- msg:
		case <-s.stop:
			cancel()
			return false
		}
		acked, settled := s.await(msg, id, renew.C)
		if !settled {
			s.leftID, s.leftCancel = id, cancel
			return false
		}
		cancel()
		if acked {
			return s.acknowledge(inner, id)
		}
		t := time.NewTimer(s.cfg.NackSleep)
		select {
		case <-t.C:
		case <-s.stop:
			t.Stop()
			return false
		}
	}
}

// await waits for the handler and keeps the entry alive meanwhile.
func (s *subscription) await(msg *message.Message, id string, renew <-chan time.Time) (acked, settled bool) {
	for {
		select {
		case <-msg.Acked():
			return true, true
		case <-msg.Nacked():
			return false, true
		case <-renew:
			s.keepAlive(id)
		case <-s.abandoned:
			return false, false
		}
	}
}

func (s *subscription) keepAlive(id string) {
	c := s.shared()
	if s.at.Group == "" || c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	if err := s.member(c).KeepAlive(ctx, id); err != nil {
		s.log.Warn("keeping an entry alive failed, trying again", slog.String(pipeline.LogStream, s.at.Name), pipeline.Err(err))
	}
}

// acknowledge waits until the library's XACK was answered: closed before that, the library drops
// it.
func (s *subscription) acknowledge(inner *message.Message, id string) bool {
	if s.at.Group == "" {
		inner.Ack()
		return true
	}
	answered := s.watch.expect(id)
	inner.Ack()
	select {
	case <-answered:
		return true
	case <-s.abandoned:
		s.leftID = id
		return false
	}
}

// end closes the library's subscriber with its client, releases what was read and not handled, and
// takes the consumer out of the group.
func (s *subscription) end() {
	s.watch.stopReads()
	if err := s.inner.Close(); err != nil {
		s.log.Warn("closing failed", slog.String(pipeline.LogStream, s.at.Name), pipeline.Err(err))
	}
	if s.unmark != nil {
		defer s.unmark()
	}
	c := s.shared()
	if s.at.Group == "" || c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	if err := s.giveBack(ctx, c); err != nil {
		s.log.Warn("what was read ahead was not released, it is claimed later", slog.String(pipeline.LogStream, s.at.Name), pipeline.Err(err))
	}
}

func (s *subscription) giveBack(ctx context.Context, c goredis.UniversalClient) error {
	pending, err := c.XPendingExt(ctx, &goredis.XPendingExtArgs{
		Stream: s.at.Name, Group: s.at.Group, Consumer: s.consumer, Start: "-", End: "+", Count: 100,
	}).Result()
	if err != nil {
		return fmt.Errorf("pending entries: %w", err)
	}
	var ids []string
	for _, p := range pending {
		if p.ID != s.leftID {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) > 0 {
		if _, err := s.member(c).Release(ctx, s.cfg.MaxIdle, ids...); err != nil {
			return err
		}
	}
	_, err = s.member(c).Remove(ctx)
	return err
}

func (s *subscription) member(c goredis.UniversalClient) poll.Consumer {
	return poll.Consumer{Client: c, Stream: s.at.Name, Group: s.at.Group, Name: s.consumer}
}

// Failed delivers an error when the library's subscription ends without having been asked to.
func (s *subscription) Failed() <-chan error { return s.failed }
