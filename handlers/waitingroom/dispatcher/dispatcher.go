package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/waitingroom/promoted"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Group is the consumer group of the streams ENTRY.
const Group = "dispatcher"

const (
	callTimeout     = 2 * time.Second        // of a call to the server
	tickTime        = 100 * time.Millisecond // after which a tick is not continued
	entryPoll       = time.Second            // of the streams ENTRY; a tick here wakes them at once
	janitorInterval = 30 * time.Second
	maxDeliveries   = 20
	warnEvery       = 10 * time.Second
	stalledAfter    = 10 * time.Second
)

// Options are the parts of a Dispatcher. All are required.
type Options struct {
	Config
	Rooms      *room.Rooms
	Redis      *redis.Plugin // has the presence of the instances
	Server     *redis.Server // has the rooms
	DeadLetter pipeline.Sink // receives entries that can not be read
}

// Dispatcher is a pipeline.Service, after that of the server. Use New.
type Dispatcher struct {
	o       Options
	family  *redis.Family
	metrics *metrics
	log     *slog.Logger
	sampled *pipeline.LogSampler
	loops   pipeline.Loops
	queue   chan string
	slow    chan struct{} // has room for one event whose last tick failed

	mu         sync.Mutex
	events     map[string]*event
	streams    []string // ENTRY streams of the events
	progressed time.Time
}

// event is what a dispatcher remembers of an event. Dispatcher.mu guards it.
type event struct {
	busy   bool // a tick waits or runs
	failed bool // the last tick
	table  *room.Table
	at     time.Time // of the table
}

// New returns a dispatcher.
func New(o Options) *Dispatcher {
	d := &Dispatcher{
		o: o, sampled: pipeline.NewLogSampler(warnEvery), queue: make(chan string, o.Promoter.Queue),
		slow: make(chan struct{}, 1), events: map[string]*event{},
	}
	d.metrics = newMetrics(d)
	d.family = o.Redis.Family(redis.FamilyOptions{
		Name: room.EntryStream("<event>"), Group: Group, Server: o.Server, Fields: true, PollInterval: entryPoll,
		List: func(context.Context) ([]string, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.streams, nil
		},
	})
	return d
}

// Family is the streams ENTRY, for plugins/reclaim.
func (d *Dispatcher) Family() *redis.Family { return d.family }

// Register adds the service, the route, the readiness check and the metrics.
func (d *Dispatcher) Register(r *pipeline.Registry) {
	d.log = r.Env().Logger
	r.Collect(d.metrics.collectors()...)
	r.Service("waitingroom.dispatcher", d)
	r.Health("waitingroom.dispatcher", d.progressing)
	r.Route(pipeline.Route{
		Name: "waitingroom.dispatcher", From: d.family.Source(), Batch: pipeline.Batch{PerSource: true},
		HandleBatch: func(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
			return promoted.Handle(msgs, func(event string, users []promoted.User) error { return d.route(ctx, event, users) })
		},
		Policy: pipeline.Policy{DeadLetter: d.o.DeadLetter, MaxDeliveries: maxDeliveries},
	})
}

// Start starts the loops.
func (d *Dispatcher) Start(ctx context.Context) error {
	d.progress()
	loops := []func(context.Context){d.promote, func(ctx context.Context) { pipeline.Every(ctx, janitorInterval, d.clean) }}
	for range d.o.Promoter.Workers {
		loops = append(loops, d.work)
	}
	return d.loops.Start(ctx, loops...)
}

// Stop waits for the ticks in progress.
func (d *Dispatcher) Stop(ctx context.Context) error { return d.loops.Stop(ctx) }

// promote queues the ticks of all events at each interval.
func (d *Dispatcher) promote(ctx context.Context) {
	next := time.Now()
	pipeline.Repeat(ctx, 0, func(ctx context.Context) time.Duration {
		d.round(ctx)
		next = next.Add(d.o.PromoteInterval)
		if late := time.Since(next); late > 0 {
			d.metrics.missed.Add(float64(late / d.o.PromoteInterval))
			next = next.Add(late.Truncate(d.o.PromoteInterval))
		}
		return time.Until(next)
	})
}

func (d *Dispatcher) round(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	list, err := d.o.Rooms.Events(call)
	cancel()
	if err != nil {
		d.warn(ctx, "events not listed, trying again", err)
		return
	}
	if len(list) == 0 {
		d.progress()
	}
	for _, name := range d.due(list) {
		select {
		case d.queue <- name:
		default:
			d.tick(ctx, name)
		}
	}
}

// due returns the events to tick now. A tick that still waits or runs is missed.
func (d *Dispatcher) due(list []string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	events, streams := make(map[string]*event, len(list)), make([]string, 0, len(list))
	sizes := make(map[string]int64, len(list))
	var due []string
	for _, name := range list {
		e := d.events[name]
		if e == nil {
			e = &event{}
		}
		events[name], streams, sizes[name] = e, append(streams, room.EntryStream(name)), 0
		if e.table != nil {
			sizes[name] = e.table.Waiting
		}
		if e.busy {
			d.metrics.missed.Inc()
			continue
		}
		e.busy = true
		due = append(due, name)
	}
	d.events, d.streams = events, streams
	d.metrics.choose(sizes)
	return due
}

// work runs queued ticks.
func (d *Dispatcher) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-d.queue:
			d.tick(ctx, name)
		}
	}
}

// tick promotes the users of an event, repeatedly while there is more to do. Events whose last tick
// failed have one place together: their node may not answer.
func (d *Dispatcher) tick(ctx context.Context, name string) {
	d.mu.Lock()
	e := d.events[name]
	d.mu.Unlock()
	if e == nil { // it is no longer in the list
		return
	}
	if e.failed {
		select {
		case d.slow <- struct{}{}:
			defer func() { <-d.slow }()
		default:
			d.done(e, true)
			return
		}
	}
	for begin, more := time.Now(), true; more && time.Since(begin) < tickTime && ctx.Err() == nil; {
		var err error
		if more, err = d.once(ctx, name, e); err != nil {
			d.warn(ctx, "tick of an event failed, trying again", err, slog.String("event", name))
			d.done(e, true)
			return
		}
	}
	d.progress()
	d.done(e, false)
}

func (d *Dispatcher) done(e *event, failed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.busy, e.failed = false, failed
}

// once calls the script of the tick.
func (d *Dispatcher) once(ctx context.Context, name string, e *event) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begin := time.Now()
	t, err := d.o.Rooms.Tick(ctx, name)
	if err != nil || !t.Ran {
		return false, err
	}
	d.metrics.script.Observe(time.Since(begin).Seconds())
	if t.Promoted > 0 {
		failpoint.Hit(failpoint.Promoted)
		d.family.Wake(room.EntryStream(name))
	}
	if t.Table != nil {
		d.mu.Lock()
		e.table, e.at = t.Table, begin
		d.mu.Unlock()
	}
	d.metrics.ticked(name, t)
	if t.Gap > 0 {
		d.log.WarnContext(ctx, "ticks had stopped or the server is another one: no user is promoted or removed for now",
			slog.String("event", name), slog.Duration("gap", t.Gap), slog.Duration("hold", t.Hold))
	}
	return t.More, nil
}

func (d *Dispatcher) warn(ctx context.Context, text string, err error, attrs ...slog.Attr) {
	if ctx.Err() == nil {
		d.sampled.Warn(d.log, text, append(attrs, pipeline.Err(err))...)
	}
}

func (d *Dispatcher) progress() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.progressed = time.Now()
}

// progressing is the readiness check. An instance without events makes progress, and so does one
// that ticks any event.
func (d *Dispatcher) progressing(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if since := time.Since(d.progressed); since > stalledAfter+5*d.o.PromoteInterval {
		return fmt.Errorf("no tick of any event has succeeded for %s", since.Round(time.Second))
	}
	return nil
}

var _ pipeline.Service = (*Dispatcher)(nil)
