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
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// broadcast is watermill-kafka's subscriber without a group, with a drain around it. The messages'
// contexts outlive the stop, and a stop waits for what is in flight. Watermill's subscriber has one
// message per partition in flight, and delivers a nacked one again after a pause. It reads the
// partitions that existed when it started. So every Order is kept, and a Window has no effect.
//
// When the topic was deleted and created again, it begins again with all of the new one.
type broadcast struct {
	*pipeline.Life
	topic       string
	client      sarama.Client // for the topic's id
	open        func(initial int64) (*wkafka.Subscriber, error)
	inner       *wkafka.Subscriber
	id          topicID      // from before inner chose its positions
	seen        chan topicID // the id at this moment
	log         *slog.Logger
	reconnect   pipeline.Backoff
	nackBackoff pipeline.Backoff
	gate        *gate
	semaphore   semaphore

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
	conf, err := consumerConfig(c, log)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	// Watermill's subscriber does not read the errors of partitions. A partition that reports one
	// would wait for a reader forever, and so would its records.
	conf.Consumer.Return.Errors = false
	client, err := sarama.NewClient(c.Brokers, conf)
	if err != nil {
		return nil, fmt.Errorf("kafka: open broadcast %s: %w", topic, err)
	}
	log = log.With(logs.Topic, topic)
	b := &broadcast{
		topic: topic, client: client, seen: make(chan topicID), log: log, reconnect: c.ReconnectBackoff, nackBackoff: c.NackBackoff,
		gate: newGate(f.Gate), semaphore: newSemaphore(f.MaxInFlight), delivered: map[int32]deliveries{},
	}
	b.open = func(initial int64) (*wkafka.Subscriber, error) {
		from := *conf
		from.Consumer.Offsets.Initial = initial
		return wkafka.NewSubscriber(wkafka.SubscriberConfig{
			Brokers:               c.Brokers,
			Unmarshaler:           marshaler{},
			OverwriteSaramaConfig: &from,
			NackResendSleep:       max(c.NackBackoff.First, time.Millisecond),
			ReconnectRetrySleep:   max(c.ReconnectBackoff.First, time.Millisecond),
		}, watermill.NewSlogLoggerWithLevelMapping(log, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug}))
	}
	in, err := b.begin(ctx, initial)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kafka: subscribe to broadcast %s: %w", topic, err), client.Close())
	}
	b.Life = pipeline.NewLife(c.CloseTimeout, func(ctx context.Context) error { return b.run(ctx, in) })
	return b, nil
}

// begin opens Watermill's subscriber and subscribes it, which tries once. It retries when the
// leader of a partition has just moved.
func (b *broadcast) begin(ctx context.Context, initial int64) (<-chan *message.Message, error) {
	for attempt := 1; ; attempt++ {
		in, err := b.tryToBegin(ctx, initial)
		moved := errors.Is(err, sarama.ErrNotLeaderForPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable)
		if err == nil || !moved || attempt == 5 || !loop.Sleep(ctx, b.reconnect.Delay(attempt)) {
			return in, err
		}
	}
}

func (b *broadcast) tryToBegin(ctx context.Context, initial int64) (<-chan *message.Message, error) {
	id, err := b.topicID()
	if err != nil {
		return nil, err
	}
	inner, err := b.open(initial)
	if err != nil {
		return nil, err
	}
	// Without cancel: Watermill drops what is in flight when its context ends.
	in, err := inner.Subscribe(context.WithoutCancel(ctx), b.topic)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	b.inner, b.id = inner, id
	return in, nil
}

// topicID returns the id that the leaders of all partitions have for the topic.
func (b *broadcast) topicID() (id topicID, err error) {
	partitions, err := b.client.Partitions(b.topic)
	if err != nil {
		return topicID{}, err
	}
	for i, partition := range partitions {
		of, err := leaderTopicID(b.client)(b.topic, partition)
		if err != nil {
			return topicID{}, err
		}
		if i > 0 && of != id {
			return topicID{}, fmt.Errorf("%w: not all leaders know of the new topic %s", sarama.ErrLeaderNotAvailable, b.topic)
		}
		id = of
	}
	return id, nil
}

// compareTopic reports the present id of the topic to run.
func (b *broadcast) compareTopic(context.Context) {
	id, err := b.topicID()
	if err != nil {
		return // it is tried again
	}
	select {
	case b.seen <- id:
	case <-b.Reading.Done():
	}
}

// beginAnew reads all of a topic that was created again; nil when the subscription was stopped
// first. What is in flight goes on, and its answers change nothing.
func (b *broadcast) beginAnew(ctx context.Context, id topicID) <-chan *message.Message {
	b.log.Warn("kafka topic was deleted and created again; the new one is read from its beginning", keyFormerTopicID, b.id.String(), keyTopicID, id.String())
	b.closeInner()
	b.mu.Lock()
	clear(b.delivered)
	b.mu.Unlock()
	for attempt := 1; ; attempt++ {
		in, err := b.begin(ctx, sarama.OffsetOldest)
		if err == nil {
			return in
		}
		b.log.Debug("kafka broadcast can't begin anew yet", logs.Err(err))
		if !loop.Sleep(b.Reading, b.reconnect.Delay(attempt)) {
			return nil
		}
	}
}

// closeInner closes Watermill's subscriber, which always answers nil.
func (b *broadcast) closeInner() {
	if err := b.inner.Close(); err != nil {
		b.log.Debug("kafka broadcast closed with an error", logs.Err(err))
	}
}

func (b *broadcast) run(ctx context.Context, in <-chan *message.Message) error {
	var inFlight, helpers sync.WaitGroup
	helpers.Go(func() { b.gate.watch(b.Reading) })
	helpers.Go(func() { loop.Every(b.Reading, topicCheckInterval, b.compareTopic) })
	for reading := true; reading; {
		select {
		case <-b.Reading.Done():
			reading = false
		case id := <-b.seen:
			if b.id.differs(id) {
				in = b.beginAnew(ctx, id)
			}
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
	b.closeInner()
	return b.client.Close()
}

// forward sends m with a context that ends with the answer, and passes the answer back.
func (b *broadcast) forward(ctx context.Context, m *message.Message) {
	if !b.semaphore.acquire(b.Reading) {
		return
	}
	defer b.semaphore.release()
	partition, _ := wkafka.MessagePartitionFromCtx(m.Context())
	offset, _ := wkafka.MessagePartitionOffsetFromCtx(m.Context())
	n := b.deliver(partition, offset)
	origin := pipeline.Origin{Kind: Kind, Source: b.topic, Position: position(b.topic, partition, offset), Key: m.Metadata[pipeline.MetaKey]}
	msg, done := (&record{pristine: m}).delivery(ctx, pipeline.Delivery{Origin: origin, Delivered: int64(n)})
	defer done()
	if !b.gate.send(b.Reading, b.Out, msg) {
		return
	}
	select {
	case <-msg.Acked():
		m.Ack()
	case <-msg.Nacked():
		// Watermill's subscriber adds the first pause, always the same one.
		loop.Sleep(b.Reading, b.nackBackoff.Delay(n)-b.nackBackoff.First)
		m.Nack()
	case <-b.Abandoned.Done():
	}
}

var _ pipeline.Subscription = (*broadcast)(nil)
