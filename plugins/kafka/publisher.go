package kafka

import (
	"context"
	"errors"
	"fmt"
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

// call is one Publish that waits for its messages.
type call struct {
	left  atomic.Int64
	ended chan struct{} // closed when all are answered
	mu    sync.Mutex
	errs  []error
}

func (c *call) answer(err error) {
	if err != nil {
		c.mu.Lock()
		if len(c.errs) == 0 || c.errs[len(c.errs)-1].Error() != err.Error() {
			c.errs = append(c.errs, err) // thousands of records of a batch fail in one way
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
			m.Metadata.(*call).answer(nil)
		}
	})
	out.answers.Go(func() {
		for e := range async.Errors() {
			p.metrics.publishErrors.WithLabelValues(e.Msg.Topic).Inc()
			e.Msg.Metadata.(*call).answer(e.Err)
		}
	})
	return out, nil
}

func (p *publisher) publish(ctx context.Context, topic string, msgs []*message.Message) error {
	failed := func(err error) error { return fmt.Errorf("kafka: publish to %s: %w", topic, err) }
	if err := ctx.Err(); err != nil {
		return failed(err)
	}
	c := &call{ended: make(chan struct{})}
	c.left.Store(int64(len(msgs)))
	records := make([]*sarama.ProducerMessage, len(msgs))
	for i, m := range msgs {
		record, err := marshaler{}.Marshal(topic, m)
		if err != nil {
			return failed(err)
		}
		if n := byteSize(record); n > p.config.MaxMessageBytes {
			return tooLarge(failed(fmt.Errorf("message %s has %d bytes, max_message_bytes is %d", m.UUID, n, p.config.MaxMessageBytes)))
		}
		record.Metadata = c
		records[i] = record
	}
	if err := p.feed(ctx, records); err != nil {
		return failed(err)
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		return failed(ctx.Err())
	}
	err := errors.Join(c.errs...)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sarama.ErrMessageSizeTooLarge): // the topic's own limit
		return tooLarge(failed(err))
	default:
		return failed(err)
	}
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
