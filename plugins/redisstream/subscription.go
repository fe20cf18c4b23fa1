package redisstream

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/poll"
)

// subscription connects the library's subscriber with the route. The context of a message outlives
// the drain, and the library is closed only after the message in flight is acknowledged.
type subscription struct {
	*pipeline.Life
	at           pipeline.Endpoint
	cfg          Config
	shared       func() goredis.UniversalClient // for commands during a blocking read
	watch        *watch
	consumer     string
	unmark       func() // nil without a group, like stopTrimming
	stopTrimming func()
	gate         func() bool
	log          *slog.Logger
	inner        *redisstream.Subscriber
	in           <-chan *message.Message
	leftID       string             // the entry of a message that was left behind
	leftCancel   context.CancelFunc // never called: the handler keeps its context
}

// Drain reads nothing new, waits for the message in flight and its acknowledgement, and releases
// the entries that were read ahead. Shortly before the end of ctx, it abandons the message.
func (s *subscription) Drain(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok {
		abandon := time.AfterFunc(time.Until(end)-min(time.Second, time.Until(end)/5), s.Abandon)
		defer abandon.Stop()
	}
	return s.Life.Drain(ctx)
}

// Close drains for at most the close timeout. Idempotent.
func (s *subscription) Close() error {
	if err := s.Life.Close(); err != nil {
		s.log.Warn("closed with a message in flight, it is delivered again elsewhere", pipeline.Err(err))
	}
	return nil
}

// run delivers messages, one at a time, until Reading ends.
func (s *subscription) run(context.Context) error {
	defer s.end()
	for s.openGate() {
		select {
		case msg, ok := <-s.in:
			if !ok {
				s.Fail(fmt.Errorf("%s: the library's subscription has ended by itself", s.at))
				return nil
			}
			if !s.pass(msg) {
				return s.unfinished()
			}
		case <-s.Reading.Done():
			return nil
		}
	}
	return nil
}

func (s *subscription) unfinished() error {
	if s.leftID == "" {
		return nil
	}
	return fmt.Errorf("%s: a message is still being handled: %w", s.at, context.DeadlineExceeded)
}

// openGate waits for the gate of the route. It returns false when Reading ends.
func (s *subscription) openGate() bool {
	for s.gate != nil && !s.gate() {
		t := time.NewTimer(s.cfg.BlockTime)
		select {
		case <-t.C:
		case <-s.Reading.Done():
			t.Stop()
			return false
		}
	}
	return true
}

// pass delivers one message until it is acknowledged. False ends the subscription.
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
		case s.Out <- msg:
		case <-s.Reading.Done():
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
		case <-s.Reading.Done():
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
		case <-s.Abandoned.Done():
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

// acknowledge waits for the reply to the library's XACK. A Close before that would drop the XACK.
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
	case <-s.Abandoned.Done():
		s.leftID = id
		return false
	}
}

// end closes the library's subscriber with its client, releases the entries that were not handled,
// and removes the consumer.
func (s *subscription) end() {
	s.watch.stopReads()
	if err := s.inner.Close(); err != nil {
		s.log.Warn("closing failed", slog.String(pipeline.LogStream, s.at.Name), pipeline.Err(err))
	}
	if s.unmark != nil {
		defer s.unmark()
		defer s.stopTrimming()
	}
	c := s.shared()
	if s.at.Group == "" || c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	if err := s.release(ctx, s.member(c)); err != nil {
		s.log.Warn("entries that were read ahead were not released, they are claimed later", slog.String(pipeline.LogStream, s.at.Name), pipeline.Err(err))
	}
}

func (s *subscription) release(ctx context.Context, c poll.Consumer) error {
	pending, err := c.Client.XPendingExt(ctx, &goredis.XPendingExtArgs{
		Stream: c.Stream, Group: c.Group, Consumer: c.Name, Start: "-", End: "+", Count: 100,
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
	if _, err := c.Release(ctx, s.cfg.MaxIdle, ids...); err != nil {
		return err
	}
	_, err = c.Remove(ctx)
	return err
}

func (s *subscription) member(c goredis.UniversalClient) poll.Consumer {
	return poll.Consumer{Client: c, Stream: s.at.Name, Group: s.at.Group, Name: s.consumer}
}
