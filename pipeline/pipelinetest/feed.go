package pipelinetest

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// Feed is a Source in memory. Messages given to Send are delivered in order, one at a time or, when
// the route's Flow.Window is larger, that many at once. A nacked message is delivered again after
// RedeliveryDelay, like a broker would. Safe for concurrent use; open it once.
type Feed struct {
	// Name is the topic shown in the origin. Empty: "feed".
	Name string
	// RedeliveryDelay is the wait before a nacked message comes back. Zero: 1ms.
	RedeliveryDelay time.Duration

	mu      sync.Mutex
	queue   []*message.Message
	ready   chan struct{} // holds a token while the queue may not be empty
	settled chan Settled
	next    int64
}

// Settled says how one delivery of a message ended.
type Settled struct {
	Message *message.Message
	Acked   bool
}

// NewFeed returns an empty feed.
func NewFeed(name string) *Feed {
	return &Feed{Name: name, ready: make(chan struct{}, 1), settled: make(chan Settled, 1024)}
}

// Send queues messages for delivery.
func (f *Feed) Send(msgs ...*message.Message) {
	f.mu.Lock()
	f.queue = append(f.queue, msgs...)
	f.mu.Unlock()
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// SendPayloads queues messages made of payloads, with ids 1, 2, 3, …
func (f *Feed) SendPayloads(payloads ...string) {
	for _, p := range payloads {
		f.mu.Lock()
		f.next++
		id := strconv.FormatInt(f.next, 10)
		f.mu.Unlock()
		f.Send(message.NewMessage(id, []byte(p)))
	}
}

// Sink returns a sink whose messages the feed delivers, for a retry topic. It ignores MetaDue and
// delivers at once.
func (f *Feed) Sink() pipeline.Sink { return feedSink{f} }

type feedSink struct{ feed *Feed }

// Describe implements pipeline.Sink.
func (s feedSink) Describe() pipeline.Endpoint { return s.feed.Describe() }

// Publish implements pipeline.Sink. The messages are copied.
func (s feedSink) Publish(_ context.Context, msgs ...*message.Message) error {
	for _, m := range msgs {
		s.feed.Send(m.Copy())
	}
	return nil
}

// Settled delivers the end of every delivery, in the order they ended.
func (f *Feed) Settled() <-chan Settled { return f.settled }

// Delays implements pipeline.Delayer. A feed does not wait: it delivers as if the due time had
// come, so that tests of retries take no time.
func (f *Feed) Delays() error { return nil }

// Delays implements pipeline.Delayer, like that of Feed.
func (s feedSink) Delays() error { return nil }

// Describe implements pipeline.Source.
func (f *Feed) Describe() pipeline.Endpoint {
	name := f.Name
	if name == "" {
		name = "feed"
	}
	return pipeline.Endpoint{Kind: "feed", Name: name}
}

// Open implements pipeline.Source.
func (f *Feed) Open(_ context.Context, flow pipeline.Flow) (pipeline.Subscription, error) {
	window := flow.Window
	if window < 1 || flow.Order == pipeline.OrderPartition {
		window = 1
	}
	return &feedSubscription{feed: f, slots: make(chan struct{}, window), stop: make(chan struct{}), out: make(chan *message.Message)}, nil
}

type feedSubscription struct {
	feed  *Feed
	slots chan struct{}
	out   chan *message.Message
	once  sync.Once
	stop  chan struct{}
	loop  sync.WaitGroup
}

func (s *feedSubscription) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	s.loop.Go(s.run)
	return s.out, nil
}

func (s *feedSubscription) run() {
	var inFlight sync.WaitGroup
	defer close(s.out)
	defer inFlight.Wait()
	for {
		select {
		case <-s.stop:
			return
		case s.slots <- struct{}{}:
		}
		if s.stopped() {
			return
		}
		msg := s.take()
		if msg == nil {
			<-s.slots
			select {
			case <-s.stop:
				return
			case <-s.feed.ready:
			}
			continue
		}
		inFlight.Go(func() {
			defer func() { <-s.slots }()
			s.deliver(msg)
		})
	}
}

// stopped is checked again after a select, which may choose another ready case after the stop.
func (s *feedSubscription) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

func (s *feedSubscription) take() *message.Message {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if len(s.feed.queue) == 0 {
		return nil
	}
	msg := s.feed.queue[0]
	s.feed.queue = s.feed.queue[1:]
	return msg
}

func (s *feedSubscription) deliver(original *message.Message) {
	d := pipeline.DeliveryFrom(original.Context())
	d.Origin = pipeline.Origin{
		Kind: "feed", Source: s.feed.Describe().Name, Key: original.Metadata.Get(pipeline.MetaKey), Position: s.feed.Describe().Name + "@" + original.UUID,
	}
	for d.Delivered = 1; ; d.Delivered++ {
		msg := original.Copy()
		msg.SetContext(pipeline.WithDelivery(context.WithoutCancel(original.Context()), d))
		if s.stopped() {
			return
		}
		select {
		case s.out <- msg:
		case <-s.stop:
			return
		}
		select {
		case <-msg.Acked():
			s.feed.report(Settled{msg, true})
			return
		case <-msg.Nacked():
			s.feed.report(Settled{msg, false})
		}
		delay := time.NewTimer(max(s.feed.RedeliveryDelay, time.Millisecond))
		select {
		case <-delay.C:
		case <-s.stop:
			delay.Stop()
			return
		}
	}
}

func (f *Feed) report(s Settled) {
	select {
	case f.settled <- s:
	default: // full: no test counts this many
	}
}

func (s *feedSubscription) Drain(ctx context.Context) error {
	s.once.Do(func() { close(s.stop) })
	done := make(chan struct{})
	go func() { s.loop.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *feedSubscription) Close() error {
	s.once.Do(func() { close(s.stop) })
	return nil
}

var (
	_ pipeline.Source       = (*Feed)(nil)
	_ pipeline.Sink         = feedSink{}
	_ pipeline.Subscription = (*feedSubscription)(nil)
	_ pipeline.Delayer      = (*Feed)(nil)
)
