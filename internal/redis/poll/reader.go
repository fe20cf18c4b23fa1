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

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/slots"
)

// Stats is a snapshot of a reader.
type Stats struct {
	InFlight    int       // entries that this reader is responsible for
	Buffered    int       // of those: not in a worker
	Concurrency int       // the current one
	LastMessage time.Time // when the last entry came in; zero: none yet
	StartedAt   time.Time // zero: not started
	Read        int64     // entries that came in
	Acked       int64     // entries whose acknowledgement is confirmed
	Failures    int64     // reads in a row that failed
	Paused      bool
}

// Reader reads one stream for one consumer of a group. Each of its workers sends one message at a
// time to a channel. Readers may share the channel, and never close it. A reader has goroutines
// only while it has entries. Safe for concurrent use.
type Reader struct {
	s        *shared
	poller   *poller
	claimer  *claimer
	workers  *workers
	claiming loop.Group     // the claimer
	keeping  sync.WaitGroup // the acker and the renewer
	done     chan struct{}
	endLife  context.CancelFunc
}

// shared is what the parts of a reader have in common.
type shared struct {
	Consumer
	opts     *Options
	inflight *inflight
	life     context.Context // of commands; ends with the reader, or when a drain runs out of time
	base     *slog.Logger
	m        *Metrics
}

// NewReader returns a reader that has not been started. It does not close c. log and m may be nil.
func NewReader(c goredis.UniversalClient, o Options, out chan<- *message.Message, log *slog.Logger, m *Metrics) *Reader {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if m == nil {
		m = NewMetrics()
	}
	o = o.withDefaults()
	s := &shared{
		Consumer: Consumer{c, o.Stream, o.Group, o.Consumer}, opts: &o, inflight: newInflight(&o, m), base: log, m: m,
	}
	r := &Reader{s: s, workers: newWorkers(s, out), done: make(chan struct{})}
	if o.Ahead > 0 {
		s.inflight.slots = slots.New(o.Concurrency)
		s.inflight.starts = slots.New(s.inflight.mostStarts())
		o.Base = slots.WithSource(o.Base, slots.OfSource{Calls: s.inflight.slots, Starts: s.inflight.starts})
	}
	s.life, r.endLife = context.WithCancel(context.Background())
	r.poller = &poller{shared: s, end: func() { r.close(true) }, scheduled: scheduled{index: -1}, deliveries: 1, idle: o.InitialPollInterval,
		demand: demand{lowest: o.BatchSize, count: o.BatchSize}, takeOver: o.TakeOver}
	r.poller.search.Store(true)
	r.claimer = &claimer{shared: s, poller: r.poller}
	s.inflight.search, s.inflight.keep, s.inflight.work = r.poller.searchAgain, func() { r.keeping.Go(r.keep) }, r.workers.start
	return r
}

// Start starts reading. The reader owns its goroutines until Done is closed. A second Start, or one
// after Drain, does nothing.
func (r *Reader) Start() {
	if !r.s.inflight.start() {
		return
	}
	r.s.m.readers.Inc()
	if r.s.opts.ReclaimInterval > 0 {
		_ = r.claiming.Start(context.Background(), r.claimer.run) // the reader may have been closed
	}
	r.s.opts.Scheduler.addPoller(r.poller)
}

// keep runs the acker and the renewer while entries are in flight.
func (r *Reader) keep() {
	ctx, cancel := context.WithCancel(r.s.life)
	var renewing sync.WaitGroup
	renewer := renewer{r.s}
	renewing.Go(func() { renewer.run(ctx) })
	renewing.Go(func() { renewer.watchFence(ctx) })
	acker{r.s}.run()
	cancel()
	renewing.Wait()
}

// shutDown waits for the parts in their order, and cleans up.
func (r *Reader) shutDown() {
	defer close(r.done)
	defer r.endLife()
	defer r.s.m.readers.Dec()
	_ = r.claiming.Stop(context.Background()) // it ends by itself
	r.poller.scheduled.reads.Wait()           // entries of an unfinished read are released too
	r.workers.pool.Wait()
	r.s.inflight.finish()
	r.keeping.Wait()
	acker{r.s}.flushRest()
	r.s.remove(r.s.Consumer, finalFlush)
}

// close ends the reader.
func (r *Reader) close(gone bool) {
	first, started := r.s.inflight.close(gone)
	if !first {
		return
	}
	r.s.opts.Scheduler.removePoller(r.poller)
	if started {
		go r.shutDown()
		return
	}
	r.endLife()
	close(r.done)
}

// finalFlush limits the last flush of acknowledgements and the removal of the consumer, each.
const finalFlush = time.Second

// Drain stops reading, releases the entries that no worker has, waits for the handlers and flushes
// the acknowledgements. Shortly before the end of ctx it stops waiting, and its error wraps that of
// ctx. A message that is still being handled then stays pending, and is reclaimed after MinIdle. At
// the end the consumer is removed from the group, unless an entry is pending to it. Drain may be
// called again.
func (r *Reader) Drain(ctx context.Context) error {
	r.close(false)
	if end, ok := ctx.Deadline(); ok { // prepared messages get a slot, if not too late
		closing := time.AfterFunc(time.Until(end)/4, func() {
			r.s.inflight.starts.Close()
			r.s.inflight.slots.Close()
		})
		defer closing.Stop()
	}
	failpoint.Hit(failpoint.Drain)
	soft, cancel := reserve(ctx)
	defer cancel()
	select {
	case <-r.done:
		return nil
	case <-soft.Done():
	}
	r.workers.abandon()
	select {
	case <-r.done:
		if behind := r.workers.unfinished.Load(); behind > 0 {
			return fmt.Errorf("drain %s: %d messages are still being handled: %w", r.s.Stream, behind, context.DeadlineExceeded)
		}
		return nil
	case <-ctx.Done():
		r.endLife()
		r.s.opts.Scheduler.abandon(r.poller)
		return fmt.Errorf("drain %s: %w", r.s.Stream, ctx.Err())
	}
}

// reserve shortens ctx by the time of the last flush.
func reserve(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(finalFlush, time.Until(end)/5)))
}

// Names returns the stream, the group and the consumer of the reader.
func (r *Reader) Names() (stream, group, consumer string) { return r.s.Stream, r.s.Group, r.s.Name }

// Stopping is closed when the reader begins to stop: after Drain, or because its stream does not
// exist.
func (r *Reader) Stopping() <-chan struct{} { return r.s.inflight.stopping }

// Done is closed when the reader has stopped.
func (r *Reader) Done() <-chan struct{} { return r.done }

// SetPaused stops and restarts the reading. Workers still deliver the entries that were read.
func (r *Reader) SetPaused(paused bool) {
	r.poller.paused.Store(paused)
	r.Wake()
}

// Wake makes the reader poll now. The caller expects a new entry in the stream.
func (r *Reader) Wake() { r.s.opts.Scheduler.wake(r.poller) }

// Resize changes the concurrency, to at least one. A worker that is too many ends after its
// message.
func (r *Reader) Resize(concurrency int) {
	concurrency = max(1, concurrency)
	r.s.inflight.resize(concurrency)
}

// Free returns how many more entries fit: one per idle worker, and one batch ahead.
func (r *Reader) Free() int { return r.s.inflight.free() }

// Holds reports whether an entry is in flight here.
func (r *Reader) Holds(id string) bool { return r.s.inflight.has(id) }

// Reread makes the reader search its own pending entries: a claim for it may have lost its reply.
func (r *Reader) Reread() { r.poller.searchAgain() }

// Adopt takes in entries that were claimed for this reader's consumer. The caller must check Free
// before. delivered has the delivery count per id, this time included (1 when absent). acked may be
// nil. It is called once per entry, when the acknowledgement is confirmed here, and must neither
// block nor call the reader. A reader that is stopping releases the entries at once, and returns
// ErrStopped.
func (r *Reader) Adopt(ctx context.Context, entries []goredis.XMessage, delivered map[string]int64, acked func()) error {
	return r.s.adopt(ctx, entries, delivered, acked)
}

func (s *shared) adopt(ctx context.Context, entries []goredis.XMessage, delivered map[string]int64, acked func()) error {
	// The time of the claim is unknown. This one makes the renewer confirm the entries soon.
	claimed := time.Now().Add(-s.opts.MinIdle / 3)
	if s.inflight.adopt(entries, delivered, claimed, acked) {
		return nil
	}
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	_, err := s.Release(ctx, s.opts.MinIdle, ids...)
	if IsNoGroup(err) {
		err = nil
	}
	return errors.Join(ErrStopped, err)
}

// Activity returns a number that grows with each entry that is read or acknowledged, and how many
// are in flight. It costs less than Stats.
func (r *Reader) Activity() (entries int64, inFlight int) { return r.s.inflight.activity() }

// Stats returns a snapshot.
func (r *Reader) Stats() Stats {
	s := r.s.inflight.stats()
	s.Paused, s.Failures = r.poller.paused.Load(), r.poller.failures.Load()
	return s
}

// log returns a logger with the names of stream and group. It is made at each use, because a logger
// per idle stream would need more memory than the in-flight table.
func (s *shared) log() *slog.Logger {
	return s.base.With(slog.String(logs.Stream, s.Stream), slog.String(logs.Group, s.Group))
}

// command returns the context of one command.
func (s *shared) command() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.life, commandTimeout)
}

// reportDeleted reports entries that claim.lua found deleted, and acknowledged.
func (s *shared) reportDeleted(ids []string) {
	if len(ids) > 0 {
		s.m.deletedPending.Add(float64(len(ids)))
		s.log().Error("pending entries were deleted before they were handled", slog.Int("entries", len(ids)), slog.String("first", ids[0]))
	}
}
