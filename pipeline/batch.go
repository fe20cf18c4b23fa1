package pipeline

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/internal/envelope"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// BatchHandler handles several messages with one call, for example with one database statement. It
// returns one result per message, in the same order.
//
// ctx has the time limit of the route. Each message keeps its own context, Origin and outcome. The
// chain acks and nacks.
//
// After a panic, or a wrong number of results, each half of the batch is handled again, down to
// single messages. Only the message that causes it becomes a dead letter. The handler must
// therefore be idempotent within a delivery, too.
type BatchHandler func(ctx context.Context, msgs []*message.Message) []BatchResult

// BatchResult is the result for one message of a batch. The zero value acks the message.
type BatchResult struct {
	// Out are the messages for Route.To and, made by SendTo, for Route.Outputs. One call per output
	// publishes those of the whole batch.
	Out []*message.Message
	// Err fails this message alone. Out is then not published.
	Err error
	// Then is the rest of the work on this message. It runs on a goroutine of its own like
	// Route.Handle, with the time limit of the route, and replaces Out and Err. The next batch does
	// not wait for it. May be nil.
	Then message.HandlerFunc
}

// Batch limits the batches of a route with HandleBatch. Plugins have it in their settings. A Route
// uses the defaults for fields that are zero.
type Batch struct {
	// MaxRecords is the maximum number of messages in a batch.
	MaxRecords int `yaml:"max_records"`
	// MaxBytes limits the payloads of a batch together. A message that is larger is a batch of its
	// own.
	MaxBytes int `yaml:"max_bytes"`
	// Linger is the time that a batch waits for further messages although it could be handled.
	// Without it, a batch waits up to 5 ms while another one of the route is handled.
	Linger time.Duration `yaml:"linger"`
	// PerSource makes batches whose messages have the same Origin.Source, in the order of the
	// subscription. The batches of one source are handled one after another, and those of different
	// sources at once. Each batch waits until the outputs of the one before are published. A failed
	// message and its outputs may be overtaken. A source whose batch hangs delays no other source.
	// Flow limits the messages that wait.
	PerSource bool `yaml:"-"`
}

// longestLinger is the maximum of Batch.Linger. All messages of a batch wait for it.
const longestLinger = 10 * time.Second

// DefaultBatch returns the defaults: 256 messages, 1 MiB and no Linger.
func DefaultBatch() Batch { return Batch{MaxRecords: 256, MaxBytes: 1 << 20} }

// Validate reports every mistake at once.
func (b Batch) Validate() error {
	var p setting.Problems
	p.Check(b.MaxRecords >= 1, "max_records", "must be >= 1, got %d", b.MaxRecords)
	p.Check(b.MaxBytes >= 1, "max_bytes", "must be >= 1, got %d", b.MaxBytes)
	p.Check(b.Linger >= 0 && b.Linger <= longestLinger, "linger", "must be from 0s to %s, got %s", longestLinger, b.Linger)
	return p.Err()
}

func (b Batch) withDefaults() Batch {
	if b.MaxRecords == 0 {
		b.MaxRecords = DefaultBatch().MaxRecords
	}
	if b.MaxBytes == 0 {
		b.MaxBytes = DefaultBatch().MaxBytes
	}
	return b
}

// batchesAtOnce is the maximum number of batches of a route that are handled at once. While the
// statement of one runs, the next is decoded. More would only divide the same messages into smaller
// batches. A batch keeps its place neither while its outputs are published nor beyond the longest
// hold.
const batchesAtOnce = 3

// busyLinger is the longest time that a batch waits for further messages while another one of its
// route is handled. Under load, batches are then few and large.
const busyLinger = 5 * time.Millisecond

// collector makes batches of the messages of a subscription, for the Router. A message waits only
// for a place and for the linger. While all places are taken, the next batch grows.
type collector struct {
	message.Subscriber
	runtime  *Runtime
	limits   Batch
	received func(*message.Message)
	places   chan struct{} // a token per batch that is being handled
	freed    chan struct{} // capacity 1: a place was freed
}

func newCollector(r *Runtime, sub message.Subscriber, limits Batch, received func(*message.Message)) *collector {
	return &collector{sub, r, limits.withDefaults(), received, make(chan struct{}, batchesAtOnce), make(chan struct{}, 1)}
}

// Subscribe implements message.Subscriber.
func (c *collector) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := c.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	collect := c.collect
	if c.limits.PerSource {
		collect = c.collectPerSource
	}
	c.runtime.collectors.Go(func() { collect(in, out) })
	return out, nil
}

// handle frees the place of an envelope when next has returned.
func (c *collector) handle(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		defer envelope.Open(msg).Returned()
		return next(msg)
	}
}

// collect ends when in is closed and all messages are in batches, or with the life of the runtime.
// It then nacks the messages that it still has.
func (c *collector) collect(in <-chan *message.Message, out chan<- *message.Message) {
	defer close(out)
	life := c.runtime.life
	var first envelope.Message
	for {
		b := filling{collector: c, in: in}
		if first.Message == nil {
			select {
			case m := <-in:
				if m == nil {
					return
				}
				b.receive(m)
			case <-life.Done():
				return
			}
		} else {
			b.add(first)
		}
		if len(b.msgs) == 0 {
			continue
		}
		if b.wait(life) {
			release := sync.OnceFunc(c.free)
			select {
			case out <- c.envelope(b.msgs, release, release):
				first = b.next
				continue
			case <-life.Done():
			}
		}
		for _, m := range append(b.msgs, b.next) {
			if m.Message != nil {
				m.Nack()
			}
		}
		return
	}
}

// free frees the place of a batch.
func (c *collector) free() {
	<-c.places
	select {
	case c.freed <- struct{}{}:
	default:
	}
}

// envelope returns the message that carries a batch.
func (c *collector) envelope(msgs []envelope.Message, release, returned func()) *message.Message {
	return envelope.New(c.runtime.life, envelope.Batch{Messages: msgs, Go: c.runtime.workers.start, Release: release, Returned: returned})
}

// accept calls received. A message whose Activity panics is nacked, and ok is false.
func (c *collector) accept(m *message.Message) (r envelope.Message, ok bool) {
	defer func() {
		if p := recover(); p != nil {
			_ = c.runtime.workers.panicked(p) // logged
			m.Nack()
		}
	}()
	c.received(m)
	return envelope.Message{Message: m, Received: time.Now()}, true
}

type filling struct {
	*collector
	in    <-chan *message.Message // nil: the batch takes no more
	msgs  []envelope.Message
	bytes int
	next  envelope.Message // the message that did not fit
}

// receive adds a message of the subscription; nil says that there are no more.
func (b *filling) receive(m *message.Message) {
	if m == nil {
		b.in = nil
		return
	}
	if r, ok := b.accept(m); ok {
		b.add(r)
	}
}

func (b *filling) add(m envelope.Message) {
	if len(b.msgs) > 0 && b.bytes+len(m.Payload) > b.limits.MaxBytes {
		b.in, b.next = nil, m
		return
	}
	b.msgs = append(b.msgs, m)
	b.bytes += len(m.Payload)
	if len(b.msgs) == b.limits.MaxRecords || b.bytes >= b.limits.MaxBytes {
		b.in = nil
	}
}

// wait adds messages until the batch has a place. It returns false at the end of life.
func (b *filling) wait(life context.Context) bool {
	var lingered <-chan time.Time
	linger, freed := b.limits.Linger, b.freed
	if linger >= busyLinger {
		freed = nil
	} else if len(b.places) > 0 {
		linger = busyLinger
	}
	if linger > 0 {
		timer := time.NewTimer(linger)
		defer timer.Stop()
		lingered = timer.C
	}
	draining := b.runtime.draining
	for yielded := false; ; {
		place := b.places
		if lingered != nil && b.in != nil {
			place = nil
		}
		select { // a message that is there belongs to this batch, also when a place is free
		case m := <-b.in:
			b.receive(m)
			yielded = false
			continue
		default:
		}
		if b.in != nil && !yielded { // the sender of the last message may have the next one
			runtime.Gosched()
			yielded = true
			continue
		}
		select {
		case m := <-b.in:
			b.receive(m)
		case <-lingered:
			lingered = nil
		case <-freed:
			if len(b.places) == 0 {
				lingered = nil
			}
		case <-draining: // which waits for these messages
			lingered, draining = nil, nil
		case place <- struct{}{}:
			return true
		case <-life.Done():
			return false
		}
	}
}
