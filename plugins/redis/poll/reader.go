package poll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
)

// Stats is a snapshot of a reader.
type Stats struct {
	InFlight    int       // entries this reader answers for: read, and their ack or return not yet confirmed
	Buffered    int       // of those: not begun by any slot
	Slots       int       // slots wanted
	LastMessage time.Time // when the last entry came in; zero: none yet
	StartedAt   time.Time // zero: not started
	Read        int64     // entries that came in
	Acked       int64     // entries whose acknowledgement is confirmed
	Paused      bool
}

// Reader reads one stream for one consumer of a group and hands the messages to a channel, one a slot.
// It polls and never blocks in Redis. The channel may be shared by many readers; the reader never closes it.
// All methods are safe for concurrent use.
type Reader struct {
	c       goredis.UniversalClient
	cfg     Options
	out     chan<- *message.Message
	log     *slog.Logger
	m       *Metrics
	scripts scripts

	mu        sync.Mutex
	work      *sync.Cond // slots wait for work
	book      *book
	running   []bool // by slot
	started   bool
	draining  bool
	gone      bool // the stream is: nothing can be released
	behind    int  // messages left behind by a drain that ran out of time
	paused    bool
	waiting   bool             // slots wait for the fence, and are woken soon
	reread    bool             // own pending entries must be looked at again
	counts    map[string]int64 // deliveries here of entries left pending, which the server doesn't know of yet
	startedAt time.Time
	last      time.Time

	freed     chan struct{} // a slot may have become free
	wake      chan struct{} // paused, gate or hint changed
	flush     chan struct{} // something is to be acked or released
	stopping  chan struct{} // closed: nothing new is read or begun
	abandoned chan struct{} // closed: slots stop waiting for handlers
	done      chan struct{}
	abandon   func() // closes abandoned, once

	life    context.Context // of commands; ends with done, or when a drain runs out of time
	endLife context.CancelFunc

	reading, slots sync.WaitGroup
}

// NewReader returns a reader that has not been started. c stays the caller's. Nil log and metrics are allowed.
func NewReader(c goredis.UniversalClient, o Options, out chan<- *message.Message, log *slog.Logger, m *Metrics) *Reader {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if m == nil {
		m = NewMetrics()
	}
	cfg := o.withDefaults()
	r := &Reader{
		c: c, cfg: cfg, out: out, m: m, scripts: newScripts(),
		log:       log.With(slog.String(pipeline.LogStream, cfg.Stream), slog.String(pipeline.LogGroup, cfg.Group)),
		book:      newBook(cfg.Concurrency, cfg.BatchSize),
		reread:    true,
		counts:    map[string]int64{},
		freed:     make(chan struct{}, 1),
		wake:      make(chan struct{}, 1),
		flush:     make(chan struct{}, 1),
		stopping:  make(chan struct{}),
		abandoned: make(chan struct{}),
		done:      make(chan struct{}),
	}
	r.work = sync.NewCond(&r.mu)
	r.abandon = sync.OnceFunc(func() { close(r.abandoned) })
	r.life, r.endLife = context.WithCancel(context.Background())
	return r
}

// Start starts reading. The reader's goroutines are its own until Done is closed. A second Start, or one
// after Drain, does nothing.
func (r *Reader) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started || r.draining {
		return
	}
	r.started, r.startedAt = true, time.Now()
	r.m.readers.Inc()
	r.reading.Go(r.read)
	if r.cfg.ReclaimInterval > 0 {
		k := &claimer{r: r, interval: r.cfg.ReclaimInterval}
		r.reading.Go(k.run)
	}
	r.spawn()
	go r.supervise()
}

// supervise waits for the parts in the order in which they end, and cleans up.
func (r *Reader) supervise() {
	defer close(r.done)
	defer r.endLife()
	defer r.m.readers.Dec()
	quit := make(chan struct{})
	var keepers sync.WaitGroup
	keepers.Go(func() { r.flushAcks(quit) })
	keepers.Go(func() { r.keepAlive(quit) })

	<-r.stopping
	r.reading.Wait() // what an unfinished read brings is released too
	r.slots.Wait()
	close(quit)
	keepers.Wait()
	r.removeConsumer()
}

// Drain stops reading, releases what no slot has begun, waits for the handlers and flushes the
// acknowledgements. When ctx nears its end it stops waiting: what is still being handled stays pending
// and is reclaimed when it has been idle for MinIdle; the error then wraps ctx's. At last the consumer is
// removed from the group, unless something is pending to it. Drain may be called more than once.
func (r *Reader) Drain(ctx context.Context) error {
	r.stop(false)
	failpoint.Hit(failpoint.Drain)
	soft, cancel := reserve(ctx)
	defer cancel()
	select {
	case <-r.done:
		return nil
	case <-soft.Done():
	}
	r.abandon()
	select {
	case <-r.done:
		r.mu.Lock()
		behind := r.behind
		r.mu.Unlock()
		if behind == 0 {
			return nil
		}
		return fmt.Errorf("drain %s: %d messages are still being handled: %w", r.cfg.Stream, behind, context.DeadlineExceeded)
	case <-ctx.Done():
		r.endLife()
		return fmt.Errorf("drain %s: %w", r.cfg.Stream, ctx.Err())
	}
}

// reserve shortens ctx by what flushing the last acknowledgements may take.
func reserve(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(finalFlush, time.Until(end)/5)))
}

// finalFlush bounds the last flush of acknowledgements and the removal of the consumer, each.
const finalFlush = time.Second

// stop begins the end: by Drain, or by the reader itself when its stream is gone.
func (r *Reader) stop(gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return
	}
	r.draining, r.gone = true, gone
	if gone {
		r.book.forgetUnbegun()
	} else {
		r.book.returnUnbegun()
	}
	close(r.stopping)
	if !r.started {
		r.endLife()
		close(r.done)
		return
	}
	r.work.Broadcast()
	signal(r.flush)
}

// Names returns what the reader reads, and as which consumer.
func (r *Reader) Names() (stream, group, consumer string) {
	return r.cfg.Stream, r.cfg.Group, r.cfg.Consumer
}

// Stopping is closed when the reader begins to stop: by Drain, or because its stream does not exist.
func (r *Reader) Stopping() <-chan struct{} { return r.stopping }

// Done is closed when the reader has stopped and owns nothing any more.
func (r *Reader) Done() <-chan struct{} { return r.done }

// SetPaused stops and restarts the reading. While paused no XREADGROUP is sent; what was read goes on
// to the slots.
func (r *Reader) SetPaused(paused bool) {
	r.mu.Lock()
	r.paused = paused
	r.mu.Unlock()
	signal(r.wake)
}

// Wake makes the reader poll now, when something is known to be in the stream. It is only a hint.
func (r *Reader) Wake() { signal(r.wake) }

// Resize changes how many slots there are, at least one. Slots that are too many end when their message is
// settled.
func (r *Reader) Resize(slots int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.book.slots = max(1, slots)
	if r.started && !r.draining {
		r.spawn()
	}
	r.work.Broadcast()
	signal(r.freed)
}

// Free returns how many more entries fit: idle slots and the places of one batch ahead.
func (r *Reader) Free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return 0
	}
	return r.book.free()
}

// Adopt takes in entries that were claimed to this reader's consumer, as if it had read them; delivered says
// how often each was delivered, this time included (1 when absent). acked may be nil; it is called once for each of
// them whose acknowledgement is confirmed here, and must neither block nor call the reader. The caller asks Free first. A reader
// that is stopping gives them back at once, bounded by ctx, and returns ErrStopped.
func (r *Reader) Adopt(ctx context.Context, entries []goredis.XMessage, delivered map[string]int64, acked func()) error {
	// When exactly they were claimed is not known: long enough ago that they are kept alive soon.
	claimed := time.Now().Add(-r.cfg.MinIdle / 3)
	r.mu.Lock()
	if !r.draining && r.started {
		n := r.takeIn(entries, delivered, claimed)
		for _, e := range entries {
			if h := r.book.entries[e.ID]; h != nil {
				h.acked = acked
			}
		}
		r.mu.Unlock()
		r.m.adopted.Add(float64(n))
		return nil
	}
	r.mu.Unlock()
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	_, err := r.scripts.setIdle(ctx, r.c, r.cfg.Stream, r.cfg.Group, r.cfg.Consumer, r.cfg.MinIdle, ids)
	if IsNoGroup(err) {
		err = nil
	}
	return errors.Join(ErrStopped, err)
}

// takeIn puts entries into the book and wakes slots for them; the mutex is held. It answers how many
// were not there already.
func (r *Reader) takeIn(entries []goredis.XMessage, delivered map[string]int64, sent time.Time) (added int) {
	now := time.Now()
	for _, e := range entries {
		if e.Values == nil || !r.book.add(e, delivered[e.ID], sent, now) {
			continue
		}
		added++
		r.work.Signal()
	}
	if added > 0 {
		r.last = now
		r.m.entries.Add(float64(added))
	}
	return added
}

// Stats returns a snapshot.
func (r *Reader) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{
		InFlight: r.book.unsettled(), Buffered: len(r.book.buffer) + r.book.delayed, Slots: r.book.slots,
		LastMessage: r.last, StartedAt: r.startedAt, Read: r.book.read, Acked: r.book.confirmed, Paused: r.paused,
	}
}

// removeConsumer takes this reader's name out of the group when nothing is pending to it.
func (r *Reader) removeConsumer() {
	r.mu.Lock()
	gone := r.gone
	r.mu.Unlock()
	if gone {
		return
	}
	ctx, cancel := context.WithTimeout(r.life, finalFlush)
	defer cancel()
	if _, err := r.scripts.removeConsumer(ctx, r.c, r.cfg.Stream, r.cfg.Group, r.cfg.Consumer); err != nil && !IsNoGroup(err) {
		r.log.Warn("consumer not removed from its group", slog.String("consumer", r.cfg.Consumer), pipeline.Err(err))
	}
}

// command returns the context of one command.
func (r *Reader) command() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.life, commandTimeout)
}

// commandTimeout bounds a command with the client's own retries.
const commandTimeout = 10 * time.Second

// signal fills a channel of capacity one.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
