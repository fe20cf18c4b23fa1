package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// broadcast is watermill-kafka's subscriber without a group, with a drain around it. The messages'
// contexts outlive the stop, and a stop waits for what is in flight. Watermill's subscriber has one
// message per partition in flight, and delivers a nacked one again after a pause. It reads the
// partitions that existed when it started. So every Order is kept, and a Window has no effect.
type broadcast struct {
	topic        string
	inner        *wkafka.Subscriber
	closeTimeout time.Duration
	reconnect    pipeline.Backoff
	nackBackoff  pipeline.Backoff
	gate         *gate
	inFlight     chan struct{}
	out          chan *message.Message

	ctx       context.Context // ends when nothing more is to be forwarded
	stop      context.CancelFunc
	abandoned chan struct{} // closed when what is in flight is abandoned
	abandon   func()
	ended     chan struct{}

	mu         sync.Mutex
	subscribed bool
	delivered  map[int32]deliveries // per partition
}

// deliveries counts how often a record was delivered.
type deliveries struct {
	offset int64
	n      int
}

// deliver counts a delivery of the record at offset. A partition has one record in flight.
func (b *broadcast) deliver(partition int32, offset int64) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.delivered[partition]
	if d.offset != offset {
		d = deliveries{offset: offset}
	}
	d.n++
	b.delivered[partition] = d
	return d.n
}

func openBroadcast(c Config, topic string, f pipeline.Flow, log *slog.Logger) (*broadcast, error) {
	conf, err := consumerConfig(c)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	conf.Consumer.Offsets.Initial = sarama.OffsetNewest
	// Watermill's subscriber does not read the errors of partitions. A partition that reports one
	// would wait for a reader forever, and so would its records.
	conf.Consumer.Return.Errors = false
	inner, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers:               c.Brokers,
		Unmarshaler:           marshaler{},
		OverwriteSaramaConfig: conf,
		NackResendSleep:       max(c.NackBackoff.First, time.Millisecond),
		ReconnectRetrySleep:   max(c.ReconnectBackoff.First, time.Millisecond),
	}, watermill.NewSlogLoggerWithLevelMapping(log.With(pipeline.LogTopic, topic), map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug}))
	if err != nil {
		return nil, fmt.Errorf("kafka: open broadcast %s: %w", topic, err)
	}
	b := &broadcast{
		topic: topic, inner: inner, closeTimeout: c.CloseTimeout, reconnect: c.ReconnectBackoff, gate: newGate(f.Gate),
		nackBackoff: c.NackBackoff, delivered: map[int32]deliveries{},
		out: make(chan *message.Message), abandoned: make(chan struct{}), ended: make(chan struct{}),
	}
	if f.MaxInFlight > 0 {
		b.inFlight = make(chan struct{}, f.MaxInFlight)
	}
	b.abandon = sync.OnceFunc(func() { close(b.abandoned) })
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b, nil
}

// Subscribe begins to read; everything published after its return is delivered. The topic is
// ignored.
func (b *broadcast) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subscribed || b.ctx.Err() != nil {
		return nil, ErrClosed
	}
	in, err := b.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: subscribe to broadcast %s: %w", b.topic, err)
	}
	b.subscribed = true
	stopAfter := context.AfterFunc(ctx, b.stop)
	go func() {
		defer stopAfter()
		b.run(ctx, in)
	}()
	return b.out, nil
}

// begin subscribes Watermill's subscriber, which tries once. It retries when the leader of a
// partition has just moved.
func (b *broadcast) begin(ctx context.Context) (<-chan *message.Message, error) {
	for attempt := 1; ; attempt++ {
		// Without cancel: Watermill drops what is in flight when its context ends.
		in, err := b.inner.Subscribe(context.WithoutCancel(ctx), b.topic)
		moved := errors.Is(err, sarama.ErrNotLeaderForPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable)
		if err == nil || !moved || attempt == 5 || !sleep(ctx, b.reconnect.Delay(attempt)) {
			return in, err
		}
	}
}

func (b *broadcast) run(ctx context.Context, in <-chan *message.Message) {
	var inFlight, helpers sync.WaitGroup
	helpers.Go(func() { b.gate.watch(b.ctx) })
	for reading := true; reading; {
		select {
		case <-b.ctx.Done():
			reading = false
		case m, ok := <-in:
			if !ok {
				reading = false
				break
			}
			inFlight.Go(func() { b.forward(ctx, m) })
		}
	}
	b.stop()
	inFlight.Wait()
	_ = b.inner.Close() // it has no errors
	helpers.Wait()
	close(b.out)
	close(b.ended)
}

// forward sends m with a context that ends with the answer, and passes the answer back.
func (b *broadcast) forward(ctx context.Context, m *message.Message) {
	if b.inFlight != nil {
		select {
		case b.inFlight <- struct{}{}:
			defer func() { <-b.inFlight }()
		case <-b.ctx.Done():
			return
		}
	}
	partition, _ := wkafka.MessagePartitionFromCtx(m.Context())
	offset, _ := wkafka.MessagePartitionOffsetFromCtx(m.Context())
	n := b.deliver(partition, offset)
	origin := pipeline.Origin{
		Kind: Kind, Source: b.topic, Position: position(b.topic, partition, offset),
		Key: m.Metadata[pipeline.MetaKey], Delivered: int64(n),
	}
	msg, done := (&record{pristine: m}).delivery(ctx, origin)
	defer done()
	for {
		open, changed := b.gate.state()
		out := b.out
		if !open {
			out = nil
		}
		select {
		case <-b.ctx.Done():
			return
		case <-changed:
			continue
		case out <- msg:
		}
		break
	}
	select {
	case <-msg.Acked():
		m.Ack()
	case <-msg.Nacked():
		// Watermill's subscriber adds the first pause, always the same one.
		sleep(b.ctx, b.nackBackoff.Delay(n)-b.nackBackoff.First)
		m.Nack()
	case <-b.abandoned:
	}
}

// Drain stops reading and waits for what is in flight. When ctx ends first, that is abandoned.
func (b *broadcast) Drain(ctx context.Context) error {
	b.mu.Lock()
	first := b.ctx.Err() == nil
	b.stop()
	unused := !b.subscribed
	b.mu.Unlock()
	if first && unused {
		_ = b.inner.Close()
		close(b.out)
		close(b.ended)
	}
	select {
	case <-b.ended:
		return nil
	case <-ctx.Done():
		b.abandon()
		return ctx.Err()
	}
}

// Close drains for at most the close timeout.
func (b *broadcast) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), b.closeTimeout)
	defer cancel()
	if b.Drain(ctx) != nil {
		<-b.ended
	}
	return nil
}

var _ pipeline.Subscription = (*broadcast)(nil)
