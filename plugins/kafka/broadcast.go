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
	*pipeline.Life
	topic       string
	inner       *wkafka.Subscriber
	reconnect   pipeline.Backoff
	nackBackoff pipeline.Backoff
	gate        *gate
	places      places

	mu        sync.Mutex
	delivered map[int32]deliveries // per partition
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

// openBroadcast begins to read at initial, which is sarama.OffsetNewest or sarama.OffsetOldest. It
// delivers everything published after its return.
func openBroadcast(ctx context.Context, c Config, topic string, initial int64, f pipeline.Flow, log *slog.Logger) (*broadcast, error) {
	conf, err := consumerConfig(c)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	conf.Consumer.Offsets.Initial = initial
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
		topic: topic, inner: inner, reconnect: c.ReconnectBackoff, nackBackoff: c.NackBackoff,
		gate: newGate(f.Gate), places: newPlaces(f.MaxInFlight), delivered: map[int32]deliveries{},
	}
	in, err := b.begin(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kafka: subscribe to broadcast %s: %w", topic, err), inner.Close())
	}
	b.Life = pipeline.NewLife(c.CloseTimeout, func(ctx context.Context) error { return b.run(ctx, in) })
	return b, nil
}

// begin subscribes Watermill's subscriber, which tries once. It retries when the leader of a
// partition has just moved.
func (b *broadcast) begin(ctx context.Context) (<-chan *message.Message, error) {
	for attempt := 1; ; attempt++ {
		// Without cancel: Watermill drops what is in flight when its context ends.
		in, err := b.inner.Subscribe(context.WithoutCancel(ctx), b.topic)
		moved := errors.Is(err, sarama.ErrNotLeaderForPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable)
		if err == nil || !moved || attempt == 5 || !pipeline.Sleep(ctx, b.reconnect.Delay(attempt)) {
			return in, err
		}
	}
}

func (b *broadcast) run(ctx context.Context, in <-chan *message.Message) error {
	var inFlight, helpers sync.WaitGroup
	helpers.Go(func() { b.gate.watch(b.Reading) })
	for reading := true; reading; {
		select {
		case <-b.Reading.Done():
			reading = false
		case m, ok := <-in:
			if !ok {
				reading = false
				break
			}
			inFlight.Go(func() { b.forward(context.WithoutCancel(ctx), m) })
		}
	}
	b.Stop()
	inFlight.Wait()
	helpers.Wait()
	return b.inner.Close()
}

// forward sends m with a context that ends with the answer, and passes the answer back.
func (b *broadcast) forward(ctx context.Context, m *message.Message) {
	if !b.places.enter(b.Reading) {
		return
	}
	defer b.places.leave()
	partition, _ := wkafka.MessagePartitionFromCtx(m.Context())
	offset, _ := wkafka.MessagePartitionOffsetFromCtx(m.Context())
	n := b.deliver(partition, offset)
	origin := pipeline.Origin{
		Kind: Kind, Source: b.topic, Position: position(b.topic, partition, offset),
		Key: m.Metadata[pipeline.MetaKey], Delivered: int64(n),
	}
	msg, done := (&record{pristine: m}).delivery(ctx, origin)
	defer done()
	if !b.gate.send(b.Reading, b.Out, msg) {
		return
	}
	select {
	case <-msg.Acked():
		m.Ack()
	case <-msg.Nacked():
		// Watermill's subscriber adds the first pause, always the same one.
		pipeline.Sleep(b.Reading, b.nackBackoff.Delay(n)-b.nackBackoff.First)
		m.Nack()
	case <-b.Abandoned.Done():
	}
}

var _ pipeline.Subscription = (*broadcast)(nil)
