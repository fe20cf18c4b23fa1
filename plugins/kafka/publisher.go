package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// publisher feeds sarama's asynchronous producer. Watermill's publisher waits for the broker after
// every message (SyncProducer.SendMessage), so one goroutine gets one record a round trip; here a call
// hands all its messages over and then waits once, so they share requests, and so do the calls of
// many goroutines. Settings (all replicas, idempotent) and wire format are the same.
type publisher struct {
	metrics *metrics
	config  Config
	closing chan struct{}

	mu     sync.RWMutex // held for reading while a call feeds a producer
	closed bool
	normal *producer

	largeMu sync.Mutex
	large   *producer // opened for the first message that does not fit into a normal batch
}

// producer is one asynchronous producer, its client, and the goroutines that read its answers.
type producer struct {
	sarama.AsyncProducer
	client  sarama.Client
	answers sync.WaitGroup
}

// call is records handed to the producers together, and their answers.
type call struct {
	left   atomic.Int64
	ended  chan struct{} // closed when all are answered
	mu     sync.Mutex
	failed []*sarama.ProducerMessage
	errs   []error
}

func (c *call) answer(record *sarama.ProducerMessage, err error) {
	if err != nil {
		c.mu.Lock()
		c.failed = append(c.failed, record)
		// Thousands of records of a batch fail in one way.
		if !slices.ContainsFunc(c.errs, func(e error) bool { return e.Error() == err.Error() }) {
			c.errs = append(c.errs, err)
		}
		c.mu.Unlock()
	}
	if c.left.Add(-1) == 0 {
		close(c.ended)
	}
}

func openPublisher(config Config, m *metrics) (*publisher, error) {
	p := &publisher{metrics: m, config: config, closing: make(chan struct{})}
	var err error
	p.normal, err = p.open(func(*sarama.Config) {})
	return p, err
}

func (p *publisher) open(adapt func(*sarama.Config)) (*producer, error) {
	conf, err := producerConfig(p.config)
	if err != nil {
		return nil, fmt.Errorf("kafka: publisher: %w", err)
	}
	adapt(conf)
	client, err := sarama.NewClient(p.config.Brokers, conf)
	if err != nil {
		return nil, fmt.Errorf("kafka: publisher: %w", err)
	}
	async, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kafka: publisher: %w", err), client.Close())
	}
	out := &producer{AsyncProducer: async, client: client}
	out.answers.Go(func() {
		for m := range async.Successes() {
			p.metrics.published.WithLabelValues(m.Topic).Inc()
			m.Metadata.(*call).answer(m, nil)
		}
	})
	out.answers.Go(func() {
		for e := range async.Errors() {
			e.Msg.Metadata.(*call).answer(e.Msg, e.Err)
		}
	})
	return out, nil
}

func (p *publisher) publish(ctx context.Context, topic string, msgs []*message.Message) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.PublishTimeout)
	defer cancel()
	records := make([]*sarama.ProducerMessage, len(msgs))
	for i, m := range msgs {
		record, err := marshaler{}.Marshal(topic, m)
		if err != nil {
			return fmt.Errorf("kafka: publish to %s: %w", topic, err)
		}
		if n := byteSize(record); n > p.config.MaxMessageBytes {
			return tooLarge(fmt.Errorf("kafka: publish to %s: message %s has %d bytes, max_message_bytes is %d",
				topic, m.UUID, n, p.config.MaxMessageBytes))
		}
		records[i] = record
	}
	for attempt := 1; ; attempt++ {
		failed, err := p.send(ctx, records)
		if err == nil {
			return nil
		}
		if !unreachable(err) || !sleep(ctx, p.config.ReconnectBackoff.Delay(attempt)) {
			if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w: %w", ctx.Err(), err)
			}
			p.metrics.publishErrors.WithLabelValues(topic).Add(float64(len(failed)))
			err = fmt.Errorf("kafka: publish to %s: %w", topic, err)
			if errors.Is(err, sarama.ErrMessageSizeTooLarge) { // the topic's own limit
				err = tooLarge(err)
			}
			return err
		}
		records = failed
	}
}

// send makes one attempt and returns which records are not known to be durable, and why.
func (p *publisher) send(ctx context.Context, records []*sarama.ProducerMessage) (failed []*sarama.ProducerMessage, err error) {
	if err := ctx.Err(); err != nil {
		return records, err
	}
	c := &call{ended: make(chan struct{})}
	c.left.Store(int64(len(records)))
	for _, r := range records {
		r.Metadata = c
	}
	if err := p.feed(ctx, records); err != nil {
		return records, err
	}
	select {
	case <-c.ended:
		return c.failed, errors.Join(c.errs...)
	case <-ctx.Done():
		return records, ctx.Err()
	}
}

// unreachable says whether the broker did not answer at all. sarama's own retries end after three
// failed looks for a leader (its circuit breaker then refuses everything for ten seconds), which is
// less than a broker's restart takes. What a broker answered, sarama has tried often enough.
func unreachable(err error) bool {
	var answer sarama.KError
	var conf sarama.ConfigurationError
	return !errors.As(err, &answer) && !errors.As(err, &conf) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, ErrNotStarted) && !errors.Is(err, sarama.ErrShuttingDown) && !errors.Is(err, sarama.ErrClosedClient)
}

func tooLarge(err error) error { return pipeline.WithClass(pipeline.Permanent(err), ClassTooLarge) }

// byteSize is the size that sarama compares with its limits, in the record format in use.
func byteSize(r *sarama.ProducerMessage) int { return r.ByteSize(2) }

// feed hands the records to their producers. The lock keeps close from ending a producer meanwhile.
func (p *publisher) feed(ctx context.Context, records []*sarama.ProducerMessage) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return ErrNotStarted
	}
	for _, r := range records {
		to := p.normal
		if byteSize(r) >= batchBytes {
			var err error
			if to, err = p.forLarge(); err != nil {
				return err
			}
		}
		select {
		case to.Input() <- r:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.closing:
			return ErrNotStarted
		}
	}
	return nil
}

// forLarge returns the producer of large messages. It sends one a request: a batch of several could
// be more than the topic takes, though each of them is not.
func (p *publisher) forLarge() (*producer, error) {
	p.largeMu.Lock()
	defer p.largeMu.Unlock()
	if p.large != nil {
		return p.large, nil
	}
	var err error
	p.large, err = p.open(func(conf *sarama.Config) {
		conf.Producer.MaxMessageBytes = p.config.MaxMessageBytes
		conf.Producer.Flush.MaxMessages = 1
		conf.ChannelBufferSize = 0
	})
	return p.large, err
}

// close lets what was handed over finish, for as long as ctx lasts. It is called once.
func (p *publisher) close(ctx context.Context) error {
	close(p.closing)
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	producers := []*producer{p.normal}
	if p.large != nil {
		producers = append(producers, p.large)
	}
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		for _, out := range producers {
			out.AsyncClose()
		}
		for _, out := range producers {
			out.answers.Wait()
		}
	}()
	var err error
	select {
	case <-flushed:
	case <-ctx.Done():
		err = fmt.Errorf("publisher: %w", ctx.Err())
	}
	// Without its client a producer that still retries gives up.
	for _, out := range producers {
		if closeErr := out.client.Close(); closeErr != nil && !errors.Is(closeErr, sarama.ErrClosedClient) {
			err = errors.Join(err, closeErr)
		}
	}
	return err
}
