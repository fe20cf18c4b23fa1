package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// ErrPublisherClosed is returned by Publish after Close.
var ErrPublisherClosed = errors.New("publisher is closed")

// PublisherConfig has what a Publisher may be given. The zero value is complete.
type PublisherConfig struct {
	// Timeout bounds one pipeline with the client's own retries. Zero: 10s.
	Timeout time.Duration
	// Metrics may be nil.
	Metrics *Metrics
}

// Publisher is a message.Publisher that puts the messages of concurrent Publish calls into common
// pipelines. Calls during one pipeline wait for the next. The messages of one call stay in order.
// It never trims, and never sets MAXLEN, which would remove unread entries.
//
// Publishing is at least once. When the client re-sends a pipeline after a network error
// (max_retries), entries may be in the stream twice. After an error of Publish, any of its messages
// may be in the stream.
type Publisher struct{ b *Batcher }

// NewPublisher returns a Publisher. The client stays the caller's: Close doesn't close it.
func NewPublisher(c goredis.UniversalClient, cfg PublisherConfig) (*Publisher, error) {
	if c == nil {
		return nil, errors.New("redis: publisher: client is nil")
	}
	return &Publisher{NewBatcher(func() goredis.UniversalClient { return c }, cfg)}, nil
}

// Publish returns when all messages are in the stream topic, or with an error. It ends early when
// the context of the first message ends.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	entries := make([]entry.Entry, len(messages))
	for i, m := range messages {
		entries[i] = entry.New(m)
	}
	return p.b.Publish(messages[0].Context(), topic, entries)
}

// Close waits for the calls under way; later ones fail. Idempotent.
func (p *Publisher) Close() error {
	p.b.close()
	return nil
}

// Batcher makes pipelines out of concurrent calls. It has no goroutine: a call that finds no
// pipeline in progress leads the next one, for all calls that wait.
type Batcher struct {
	client  func() goredis.UniversalClient
	timeout time.Duration
	m       *Metrics

	mu      sync.Mutex
	queue   []*publishing
	leading bool
	closed  bool
	calls   sync.WaitGroup
}

// publishing is one call.
type publishing struct {
	ctx     context.Context
	stream  string
	entries []entry.Entry
	lead    chan struct{} // this call leads now; capacity 1
	done    chan error    // capacity 1
}

// The bounds of one pipeline; a single call may go over them.
const (
	maxPipelineEntries = 512
	maxPipelineBytes   = 1 << 20
)

const commandTimeout = 10 * time.Second // bounds a command with the client's own retries

// NewBatcher returns a batcher for the client that client returns, which may be nil for now.
func NewBatcher(client func() goredis.UniversalClient, cfg PublisherConfig) *Batcher {
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = commandTimeout
	}
	return &Batcher{client: client, timeout: cfg.Timeout, m: cfg.Metrics}
}

// Publish returns when all entries are in the stream, or with an error. It ends early when ctx
// ends.
func (b *Batcher) Publish(ctx context.Context, stream string, entries []entry.Entry) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish to %s: %w", stream, err)
	}
	p := &publishing{ctx: ctx, stream: stream, entries: entries, lead: make(chan struct{}, 1), done: make(chan error, 1)}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return fmt.Errorf("publish to %s: %w", stream, ErrPublisherClosed)
	}
	b.calls.Add(1)
	defer b.calls.Done()
	b.queue = append(b.queue, p)
	if !b.leading {
		b.leading = true
		p.lead <- struct{}{}
	}
	b.mu.Unlock()

	for {
		select {
		case <-p.lead:
			b.leadOne()
		case err := <-p.done:
			if err != nil {
				return fmt.Errorf("publish to %s: %w", stream, err)
			}
			return nil
		case <-ctx.Done():
			b.leave(p)
			return fmt.Errorf("publish to %s: %w", stream, ctx.Err())
		}
	}
}

// leave removes p from the queue. If p leads, the next call does instead.
func (b *Batcher) leave(p *publishing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, q := range b.queue {
		if q == p {
			b.queue = append(b.queue[:i:i], b.queue[i+1:]...)
			break
		}
	}
	select {
	case <-p.lead:
		b.passOn()
	default:
	}
}

// passOn makes the first of the queue the leader; the mutex is held.
func (b *Batcher) passOn() {
	if len(b.queue) == 0 {
		b.queue, b.leading = nil, false
		return
	}
	b.queue[0].lead <- struct{}{}
}

// leadOne sends one pipeline with the front of the queue, answers its calls and passes the lead on.
func (b *Batcher) leadOne() {
	b.mu.Lock()
	n, entries, bytes := 0, 0, 0
	for _, p := range b.queue {
		for _, e := range p.entries {
			bytes += len(e.Message)
		}
		if entries += len(p.entries); n > 0 && (entries > maxPipelineEntries || bytes > maxPipelineBytes) {
			break
		}
		n++
	}
	batch := b.queue[:n:n]
	b.queue = b.queue[n:]
	b.mu.Unlock()

	errs := b.send(batch)

	b.mu.Lock()
	b.passOn()
	b.mu.Unlock()
	for i, p := range batch {
		p.done <- errs[i]
	}
}

// send sends one pipeline and returns one error per call.
func (b *Batcher) send(batch []*publishing) []error {
	errs := make([]error, len(batch))
	client := b.client()
	if client == nil {
		for i := range errs {
			errs[i] = errors.New("the redis client has not been started")
		}
		return errs
	}
	ctx, cancel := together(batch, b.timeout)
	defer cancel()
	pipe := client.Pipeline()
	cmds := make([][]*goredis.StringCmd, len(batch))
	total := 0
	for i, p := range batch {
		for _, e := range p.entries {
			cmds[i] = append(cmds[i], pipe.XAdd(ctx, &goredis.XAddArgs{Stream: p.stream, Values: e.Values()}))
			total++
		}
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	b.m.batches.Inc()
	for i, p := range batch {
		for j, cmd := range cmds[i] {
			if err := cmd.Err(); err != nil {
				errs[i] = fmt.Errorf("message %s: %w", p.entries[j].UUID, err)
				break
			}
		}
		if errs[i] != nil {
			total -= len(p.entries)
		}
	}
	b.m.published.Add(float64(total))
	return errs
}

// together returns the context of a common pipeline. It ends when all callers have ended, or after
// timeout.
func together(batch []*publishing, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].ctx), timeout)
	latest := time.Time{}
	for _, p := range batch {
		end, ok := p.ctx.Deadline()
		if !ok {
			return ctx, cancel
		}
		if end.After(latest) {
			latest = end
		}
	}
	bounded, cancelBounded := context.WithDeadline(ctx, latest)
	return bounded, func() { cancelBounded(); cancel() }
}

func (b *Batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.calls.Wait()
}

var _ message.Publisher = (*Publisher)(nil)
