package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// publisher feeds sarama's asynchronous producer. Watermill's publisher waits for the broker after
// every message (SyncProducer.SendMessage): one record per round trip and goroutine. Here a call
// sends all its messages and then waits once, so they share requests, also with other calls.
// Settings (all replicas, idempotent) and wire format are the same.
type publisher struct {
	metrics *metrics
	config  Config
	log     *slog.Logger
	closing chan struct{}

	mu     sync.RWMutex // held for reading while a call feeds a producer
	closed bool
	normal *producer
	// single sends one record per request: large ones, and those of a refused batch. A batch may be
	// over the topic's limit though each record is not. single is opened at the start, so that no
	// publish waits for a broker that does not answer.
	single *producer
}

// producer is one asynchronous producer, its client, and the goroutines that read its answers.
type producer struct {
	sarama.AsyncProducer
	client  sarama.Client
	answers sync.WaitGroup
}

// call is records handed to the producers together.
type call struct {
	mu    sync.Mutex
	left  int           // records without an answer
	ended chan struct{} // closed when left is zero
	over  bool          // further answers are ignored
}

// outgoing is one record of a publish.
type outgoing struct {
	*sarama.ProducerMessage
	call  *call
	index int   // of its message
	err   error // of the last attempt; guarded by call.mu until the call is over
}

var errUnanswered = errors.New("no answer")

func (o *outgoing) answer(err error) {
	c := o.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	o.err = err
	if c.left--; c.left == 0 {
		close(c.ended)
	}
}

func openPublisher(config Config, m *metrics, log *slog.Logger) (*publisher, error) {
	p := &publisher{metrics: m, config: config, log: log, closing: make(chan struct{})}
	var err error
	if p.normal, err = p.open(func(*sarama.Config) {}); err != nil {
		return nil, err
	}
	p.single, err = p.open(func(conf *sarama.Config) {
		conf.Producer.MaxMessageBytes = config.MaxMessageBytes + headerAllowance
		conf.Producer.Flush.MaxMessages = 1
		conf.ChannelBufferSize = 0
	})
	if err != nil {
		p.normal.AsyncClose()
		p.normal.answers.Wait()
		return nil, errors.Join(err, p.normal.client.Close())
	}
	return p, nil
}

func (p *publisher) open(adapt func(*sarama.Config)) (*producer, error) {
	conf, err := producerConfig(p.config, p.log)
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
			m.Metadata.(*outgoing).answer(nil)
		}
	})
	out.answers.Go(func() {
		for e := range async.Errors() {
			e.Msg.Metadata.(*outgoing).answer(e.Err)
		}
	})
	return out, nil
}

// publish returns the error of each message, nil for a durable one. limit is the largest record of
// the topic, in bytes.
func (p *publisher) publish(ctx context.Context, topic string, limit int, msgs []*message.Message) []error {
	ctx, cancel := context.WithTimeout(ctx, p.config.PublishTimeout)
	defer cancel()
	errs := make([]error, len(msgs))
	records := make([]outgoing, len(msgs))
	left := make([]*outgoing, 0, len(msgs))
	for i, m := range msgs {
		record, err := marshaler{}.Marshal(topic, m)
		if err != nil {
			errs[i] = fmt.Errorf("kafka: publish to %s: %w", topic, err)
		} else if n := byteSize(record); n > limit {
			errs[i] = tooLarge(fmt.Errorf("kafka: publish to %s: message %s has %d bytes, the limit is %d", topic, m.UUID, n, limit))
		} else {
			records[i] = outgoing{ProducerMessage: record, index: i}
			left = append(left, &records[i])
		}
	}
	alone := false
	for attempt := 1; len(left) > 0; attempt++ {
		p.send(ctx, left, alone)
		left = slices.DeleteFunc(left, func(o *outgoing) bool { return o.err == nil })
		if !alone && ctx.Err() == nil && slices.ContainsFunc(left, func(o *outgoing) bool { return refused(o.err) }) {
			alone = true // the broker refused a batch; most of its records may be fine
			continue
		}
		again := slices.ContainsFunc(left, func(o *outgoing) bool { return unreachable(o.err) }) &&
			loop.Sleep(ctx, p.config.ReconnectBackoff.Delay(attempt))
		left = slices.DeleteFunc(left, func(o *outgoing) bool {
			if again && unreachable(o.err) {
				return false
			}
			errs[o.index] = p.failed(ctx, topic, o.err, alone)
			return true
		})
	}
	return errs
}

// failed counts a record that is not published and returns its error.
func (p *publisher) failed(ctx context.Context, topic string, err error, alone bool) error {
	p.metrics.publishErrors.WithLabelValues(topic).Inc()
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	err = fmt.Errorf("kafka: publish to %s: %w", topic, err)
	switch {
	case errors.Is(err, sarama.ErrInvalidTimestamp):
		err = pipeline.WithClass(fmt.Errorf("%w: check the clock of this instance, which gave the record its time, against the broker's; "+
			"the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms limit the difference", err), classInvalidTimestamp)
	case !alone:
	case errors.Is(err, sarama.ErrMessageSizeTooLarge): // the topic's own limit
		err = tooLarge(err)
	case errors.Is(err, sarama.ErrInvalidRecord):
		err = pipeline.WithClass(pipeline.Permanent(err), classInvalidRecord)
	}
	return err
}

// send makes one attempt. It sets the error of each record: nil for a durable one. alone: each in a
// request of its own.
func (p *publisher) send(ctx context.Context, records []*outgoing, alone bool) {
	c := &call{left: len(records), ended: make(chan struct{})}
	for _, r := range records {
		r.call, r.err, r.Metadata = c, errUnanswered, r
	}
	err := ctx.Err()
	if err == nil {
		err = p.feed(ctx, records, alone)
	}
	if err == nil {
		select {
		case <-c.ended:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for _, r := range records {
		if errors.Is(r.err, errUnanswered) {
			r.err = err
		}
	}
}

// refused says whether a broker refused a batch for its content. The batch is over the topic's
// limit, or one record is invalid (for instance one without a key on a compacted topic).
func refused(err error) bool {
	return errors.Is(err, sarama.ErrMessageSizeTooLarge) || errors.Is(err, sarama.ErrInvalidRecord)
}

// unreachable says whether the broker did not answer at all. sarama's own retries end after three
// failed searches for a leader. Its circuit breaker then refuses everything for ten seconds. A
// broker's restart takes longer. sarama has already retried an error that a broker answered. It
// does not retry that of an old epoch: after a lost record, a producer has a new one.
func unreachable(err error) bool {
	var answer sarama.KError
	var conf sarama.ConfigurationError
	return (!errors.As(err, &answer) || answer == sarama.ErrInvalidProducerEpoch) && !errors.As(err, &conf) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, errNotStarted) && !errors.Is(err, sarama.ErrShuttingDown) && !errors.Is(err, sarama.ErrClosedClient)
}

func tooLarge(err error) error {
	return pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassTooLarge)
}

// byteSize is the size that sarama compares with its limits, in the record format in use.
func byteSize(r *sarama.ProducerMessage) int { return r.ByteSize(2) }

// feed hands the records to their producers. The lock keeps close from ending a producer meanwhile.
func (p *publisher) feed(ctx context.Context, records []*outgoing, alone bool) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return errNotStarted
	}
	for _, r := range records {
		to := p.normal
		if alone || byteSize(r.ProducerMessage) >= min(p.config.MaxMessageBytes, batchBytes) {
			to = p.single
		}
		select {
		case to.Input() <- r.ProducerMessage:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.closing:
			return errNotStarted
		}
	}
	return nil
}

// close lets what was handed over finish, for as long as ctx lasts. It is called once.
func (p *publisher) close(ctx context.Context) error {
	close(p.closing)
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	producers := []*producer{p.normal, p.single}
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
	// Without its client a producer stops its retries.
	for _, out := range producers {
		if closeErr := out.client.Close(); closeErr != nil && !errors.Is(closeErr, sarama.ErrClosedClient) {
			err = errors.Join(err, closeErr)
		}
	}
	return err
}
