package pubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
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

// Publisher is a message.Publisher, and what the sinks of the plugin publish with. The messages of one
// call stay in order. It never trims, and never sets MAXLEN, which would remove unread entries.
//
// Publishing is at least once. When the client re-sends a pipeline after a network error
// (max_retries), entries may be in the stream twice. A message that failed may be in the stream.
//
// Up to maxDirect calls send their own entries at once: one XADD, or one pipeline. With more calls
// there are maxShared pipelines at a time, and further calls wait. A sender that ends makes the first
// of them the next sender, and it sends one pipeline for all that wait. A Publisher has no goroutine.
//
// In a Cluster only calls for the same stream share pipelines. Otherwise a node that does not
// answer would delay the streams of other nodes.
type Publisher struct {
	client  func() goredis.UniversalClient
	timeout time.Duration
	m       *Metrics

	mu     sync.Mutex
	queues map[string]*queue // by stream in a Cluster; otherwise only one, ""
	closed bool
	calls  sync.WaitGroup
}

// NewPublisher returns a Publisher. The client stays the caller's: Close doesn't close it.
func NewPublisher(c goredis.UniversalClient, cfg PublisherConfig) (*Publisher, error) {
	if c == nil {
		return nil, errors.New("redis: publisher: client is nil")
	}
	return NewPublisherOf(func() goredis.UniversalClient { return c }, cfg), nil
}

// NewPublisherOf returns a Publisher with the client that client returns at each call. While it
// returns nil, publishing fails.
func NewPublisherOf(client func() goredis.UniversalClient, cfg PublisherConfig) *Publisher {
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = commandTimeout
	}
	return &Publisher{client: client, timeout: cfg.Timeout, m: cfg.Metrics, queues: map[string]*queue{}}
}

// Publish returns when all messages are in the stream topic, or with an error. The context of the
// first message is that of PublishEntries.
func (pub *Publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	entries := make([]entry.Entry, len(messages))
	for i, m := range messages {
		entries[i] = entry.New(m)
	}
	return pub.PublishEntries(messages[0].Context(), topic, entries)
}

// Close waits for the calls under way; later ones fail. Idempotent.
func (pub *Publisher) Close() error {
	pub.mu.Lock()
	pub.closed = true
	pub.mu.Unlock()
	pub.calls.Wait()
	return nil
}

// queue has the calls that share pipelines. It exists while there are any.
type queue struct {
	name    string
	calls   int // that send, are sent or wait
	recent  int // the most calls lately: after a pipeline its calls come back one by one
	senders int
	waiting []*publishing // only while there are senders
}

// publishing is one call.
type publishing struct {
	ctx     context.Context
	stream  string
	entries []entry.Entry
	err     error
	wake    chan bool // capacity 1: true, it is a sender now; false, another one has sent it
}

// A call that waits for a pipeline takes up to two round trips. So few calls do not wait. Many
// calls share pipelines, which cost a third of the CPU. With four pipelines in progress the wait is
// a quarter of a round trip.
const (
	maxDirect = 16
	maxShared = 4
)

// The bounds of one pipeline; a single call may go over them.
const (
	maxPipelineEntries = 512
	maxPipelineBytes   = 1 << 20
)

const commandTimeout = 10 * time.Second // bounds a command with the client's own retries

// PublishEntries returns when all entries are in the stream, or with a pipeline.PublishError. It ends
// at the deadline of ctx. A cancellation ends it while another call sends its entries, which may then
// be in the stream. A call that sends waits for the reply, for at most PublisherConfig.Timeout.
func (pub *Publisher) PublishEntries(ctx context.Context, stream string, entries []entry.Entry) error {
	if err := pub.publish(&publishing{ctx: ctx, stream: stream, entries: entries}); err != nil {
		return fmt.Errorf("publish to %s: %w", stream, err)
	}
	return nil
}

func (pub *Publisher) publish(p *publishing) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	client := pub.client()
	if client == nil {
		return errors.New("the redis client has not been started")
	}
	pub.mu.Lock()
	if pub.closed {
		pub.mu.Unlock()
		return ErrPublisherClosed
	}
	pub.calls.Add(1)
	defer pub.calls.Done()
	q := pub.queueFor(client, p.stream)
	q.calls++
	q.recent = max(q.recent, q.calls)
	if q.mayStart() {
		q.senders++
		pub.mu.Unlock()
		pub.lead(client, q, []*publishing{p})
		return p.err
	}
	p.wake = make(chan bool, 1)
	q.waiting = append(q.waiting, p)
	pub.mu.Unlock()

	select {
	case sender := <-p.wake:
		if sender {
			pub.lead(client, q, pub.take(q, p))
		}
		return p.err
	case <-p.ctx.Done():
		pub.leave(q, p)
		return p.ctx.Err()
	}
}

// queueFor returns the queue of a stream; the mutex is held.
func (pub *Publisher) queueFor(client goredis.UniversalClient, stream string) *queue {
	if _, cluster := client.(*goredis.ClusterClient); !cluster {
		stream = ""
	}
	q := pub.queues[stream]
	if q == nil {
		q = &queue{name: stream}
		pub.queues[stream] = q
	}
	return q
}

// mayStart reports whether another sender is worth its cost.
func (q *queue) mayStart() bool { return q.recent <= maxDirect || q.senders < maxShared }

// leave removes p from the queue. If p has become a sender, the next call does instead.
func (pub *Publisher) leave(q *queue, p *publishing) {
	pub.mu.Lock()
	if i := slices.Index(q.waiting, p); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.calls--
	}
	pub.mu.Unlock()
	select {
	case sender := <-p.wake:
		if sender {
			pub.sent(q, []*publishing{p})
		}
	default:
	}
}

// errPanicked is the error of the calls in a pipeline whose sending has panicked.
var errPanicked = errors.New("the client panicked")

// lead sends a batch and ends its sender. A panic does not stop the other calls.
func (pub *Publisher) lead(client goredis.UniversalClient, q *queue, batch []*publishing) {
	defer pub.sent(q, batch)
	for _, p := range batch {
		p.err = errPanicked
	}
	pub.send(client, batch)
}

// sent ends a sender and the calls of its batch, and makes the first call that waits the next
// sender.
func (pub *Publisher) sent(q *queue, batch []*publishing) {
	for _, other := range batch[1:] {
		other.wake <- false
	}
	pub.mu.Lock()
	defer pub.mu.Unlock()
	q.senders--
	q.calls -= len(batch)
	q.recent = max(q.recent-1, q.calls)
	switch {
	case q.calls == 0:
		delete(pub.queues, q.name)
	case len(q.waiting) > 0 && q.mayStart():
		q.senders++
		next := q.waiting[0]
		q.waiting = q.waiting[1:]
		next.wake <- true
	}
}

// take returns p and the calls that wait, as many as one pipeline may have.
func (pub *Publisher) take(q *queue, p *publishing) []*publishing {
	pub.mu.Lock()
	defer pub.mu.Unlock()
	batch, entries, bytes := []*publishing{p}, len(p.entries), p.bytes()
	for _, other := range q.waiting {
		entries += len(other.entries)
		bytes += other.bytes()
		if entries > maxPipelineEntries || bytes > maxPipelineBytes {
			break
		}
		batch = append(batch, other)
	}
	q.waiting = q.waiting[len(batch)-1:]
	return batch
}

func (p *publishing) bytes() (n int) {
	for _, e := range p.entries {
		n += len(e.Message)
	}
	return n
}

// send sends the entries of a batch and sets the error of each call.
func (pub *Publisher) send(client goredis.UniversalClient, batch []*publishing) {
	ctx := together(batch, pub.timeout)
	process, exec := client.Process, func() {}
	if len(batch) > 1 || len(batch[0].entries) > 1 {
		pipe := client.Pipeline()
		process = pipe.Process
		exec = func() { _, _ = pipe.Exec(ctx) } // every command has its own error
	}
	cmds := make([][]*goredis.StringCmd, len(batch))
	for i, p := range batch {
		stream := any(p.stream)
		for _, e := range p.entries {
			cmd := goredis.NewStringCmd(ctx, e.Values("xadd", stream, "*")...)
			_ = process(ctx, cmd)
			cmds[i] = append(cmds[i], cmd)
		}
	}
	exec()
	pub.m.batches.Inc()
	published := 0
	for i, p := range batch {
		errs := make([]error, len(p.entries))
		for n, cmd := range cmds[i] {
			if err := cmd.Err(); err != nil {
				errs[n] = fmt.Errorf("message %s: %w", p.entries[n].UUID, err)
				continue
			}
			published++
		}
		p.err = pipeline.PublishError(errs)
	}
	pub.m.published.Add(float64(published))
}

// together returns the context of a batch. It ends when all callers have ended, or after timeout.
func together(batch []*publishing, timeout time.Duration) context.Context {
	end := time.Now().Add(timeout)
	latest := time.Time{}
	for _, p := range batch {
		at, ok := p.ctx.Deadline()
		if !ok || at.After(end) {
			at = end
		}
		if at.After(latest) {
			latest = at
		}
	}
	if len(batch) == 1 {
		return bounded{batch[0].ctx, latest}
	}
	return bounded{context.WithoutCancel(batch[0].ctx), latest}
}

// bounded is a context with an earlier deadline. It needs no timer, because the client sets the
// deadline on its connection.
type bounded struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (b bounded) Deadline() (time.Time, bool) { return b.deadline, true }

var _ message.Publisher = (*Publisher)(nil)
