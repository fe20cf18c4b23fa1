package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/wakeup"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
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
	maxDraws        = 2 // at the same time: each has all users of its pre-queue in memory
)

// Options are the parts of a Dispatcher. All but Labels are required.
type Options struct {
	Config
	Rooms      *room.Store
	Redis      *redis.Plugin // has the presence of the instances
	Server     *redis.Server // has the rooms
	DeadLetter pipeline.Sink // receives entries that can not be read
	// Labels are those of the process, which collects their metrics. Nil: of the dispatcher alone.
	Labels *topevents.Labels
}

// Dispatcher is a pipeline.Service, after that of the server. Use New.
type Dispatcher struct {
	opts    Options
	family  *redis.Family
	metrics *metrics
	log     *slog.Logger
	sampled *logs.Throttle
	loops   loop.Group
	queue   chan []string
	draws   chan string
	retries sync.WaitGroup
	unseen  map[string]bool // instances without a presence in the last clean-up

	list   func(context.Context) ([]string, error)
	script func(context.Context, []string) []room.Ticked
	draw   func(context.Context, string) (room.Drawn, error)
	node   func(ctx context.Context, event string) string

	mu         sync.Mutex
	events     map[string]*event
	failed     map[string][]string // failed events that wait, by node, while its goroutine runs
	streams    []string            // ENTRY streams of the events
	progressed time.Time
}

// event is what a dispatcher remembers of an event. Dispatcher.mu guards it.
type event struct {
	busy    bool // a tick waits or runs
	drawing bool // a draw runs here
	failed  bool // the last tick, or one of another event of the node
	empty   bool // the last tick here had no users
	table   *room.Table
	at      time.Time // of the table
	late    bool      // too few replicas have the tick of the table
}

// New returns a dispatcher.
func New(o Options) *Dispatcher {
	o.Labels = cmp.Or(o.Labels, topevents.New())
	d := &Dispatcher{
		opts: o, sampled: logs.NewThrottle(warnEvery), queue: make(chan []string, o.Promoter.Queue), draws: make(chan string),
		list: o.Rooms.Events, script: o.Rooms.Ticks, draw: o.Rooms.Draw,
		node:   func(ctx context.Context, event string) string { return o.Server.Node(ctx, room.EntryStream(event)) },
		events: map[string]*event{}, failed: map[string][]string{},
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
			return wakeup.Handle(msgs, func(event string, users []wakeup.User) error { return d.route(ctx, event, users) })
		},
		Policy: pipeline.Policy{DeadLetter: d.opts.DeadLetter, MaxDeliveries: maxDeliveries},
	})
}

// Start starts the loops.
func (d *Dispatcher) Start(ctx context.Context) error {
	d.progress()
	loops := []func(context.Context){d.promote, func(ctx context.Context) { loop.Every(ctx, janitorInterval, d.clean) }}
	for range d.opts.Promoter.Workers {
		loops = append(loops, d.work)
	}
	for range maxDraws {
		loops = append(loops, d.shuffle)
	}
	return d.loops.Start(ctx, loops...)
}

// Stop waits for the ticks in progress.
func (d *Dispatcher) Stop(ctx context.Context) error { return d.loops.Stop(ctx) }

// promote queues the ticks of all events at each interval.
func (d *Dispatcher) promote(ctx context.Context) {
	defer d.retries.Wait()
	next := time.Now()
	loop.Repeat(ctx, 0, func(ctx context.Context) time.Duration {
		d.round(ctx)
		next = next.Add(d.opts.PromoteInterval)
		if late := time.Since(next); late > 0 {
			d.metrics.missed.Add(float64(late / d.opts.PromoteInterval))
			next = next.Add(late.Truncate(d.opts.PromoteInterval))
		}
		return time.Until(next)
	})
}

// round queues a tick per event. The set of events is on one node of a Cluster: without it the last
// known events are ticked.
func (d *Dispatcher) round(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, min(callTimeout, d.opts.PromoteInterval))
	list, err := d.list(call)
	cancel()
	if err != nil {
		d.warn(ctx, "events not listed, the last known ones are ticked", err)
		list = d.known()
	} else if len(list) == 0 {
		d.progress()
	}
	healthy, failed := d.due(list)
	for _, name := range failed {
		d.retry(ctx, name)
	}
	for _, names := range d.parts(ctx, healthy) {
		select {
		case d.queue <- names:
		default:
			d.tick(ctx, false, names...)
		}
	}
}

// parts divides events into those of one call. The empty ones of a node share calls.
func (d *Dispatcher) parts(ctx context.Context, names []string) (parts [][]string) {
	limit := d.opts.Rooms.TicksMost()
	empty := map[string][]string{}
	for _, name := range names {
		d.mu.Lock()
		shares := d.events[name].empty
		d.mu.Unlock()
		if !shares {
			parts = append(parts, []string{name})
			continue
		}
		node := d.node(ctx, name)
		empty[node] = append(empty[node], name)
	}
	for _, names := range empty {
		parts = slices.AppendSeq(parts, slices.Chunk(names, limit))
	}
	return parts
}

func (d *Dispatcher) known() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.events))
}

// due returns the events to tick now. A tick that still waits or runs is missed.
func (d *Dispatcher) due(list []string) (healthy, failed []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	events, streams := make(map[string]*event, len(list)), make([]string, 0, len(list))
	sizes := make(map[string]int64, len(list))
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
		if e.failed {
			failed = append(failed, name)
		} else {
			healthy = append(healthy, name)
		}
	}
	d.events, d.streams = events, streams
	d.metrics.labels.Choose("dispatcher", sizes)
	return healthy, failed
}

// retry queues the tick of an event whose last one failed. The failed events of a node have one
// goroutine: they delay no other event, and all of them return when the node does.
func (d *Dispatcher) retry(ctx context.Context, name string) {
	node := d.node(ctx, name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed[node] == nil {
		d.retries.Go(func() {
			for name, ok := d.next(ctx, node); ok; name, ok = d.next(ctx, node) {
				d.tick(ctx, true, name)
			}
		})
	}
	d.failed[node] = append(d.failed[node], name)
}

// next removes a failed event of a node. The last call removes the node.
func (d *Dispatcher) next(ctx context.Context, node string) (name string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.failed[node]
	if len(list) == 0 || ctx.Err() != nil {
		delete(d.failed, node)
		return "", false
	}
	d.failed[node] = list[1:]
	return list[0], true
}

// work runs queued ticks.
func (d *Dispatcher) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case names := <-d.queue:
			d.tick(ctx, false, names...)
		}
	}
}

// shuffle runs draws. It is apart from the ticks: a large draw delays no other event.
func (d *Dispatcher) shuffle(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-d.draws:
			begin := time.Now()
			drawn, err := d.draw(ctx, name)
			d.metrics.drew(name, drawn, err != nil && ctx.Err() == nil)
			d.mu.Lock()
			if e := d.events[name]; e != nil {
				e.drawing = false
			}
			d.mu.Unlock()
			if err != nil {
				d.warn(ctx, "draw of a pre-queue failed, trying again", err, slog.String("event", name))
			} else if drawn.Users > 0 {
				d.log.InfoContext(ctx, "pre-queue drawn", slog.String("event", name), slog.Int("users", drawn.Users), slog.Duration("took", time.Since(begin)))
			}
		}
	}
}

// begin starts a draw, unless it runs here or there are too many: then the next tick tries again.
func (d *Dispatcher) begin(name string, e *event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.drawing {
		return
	}
	select {
	case d.draws <- name:
		e.drawing = true
	default:
	}
}

// tick promotes the users of events, repeatedly while there is more to do. A retry is one call. An
// event that has failed since it was queued is retried in the next round.
func (d *Dispatcher) tick(ctx context.Context, retry bool, names ...string) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !d.begins(name, retry) })
	for begin := time.Now(); len(names) > 0 && time.Since(begin) < tickTime && ctx.Err() == nil; {
		names = d.once(ctx, retry, names)
	}
	for _, name := range names { // the next round continues them
		d.done(name, false)
	}
}

// begins reports whether an event is ticked now.
func (d *Dispatcher) begins(name string, retry bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.events[name]
	if e == nil { // it is no longer in the list
		return false
	}
	if e.failed && !retry {
		e.busy = false
		return false
	}
	return true
}

// suspect marks all events of the node of an event as failed: their calls may take callTimeout
// each. Without a Cluster there are no others to protect.
func (d *Dispatcher) suspect(ctx context.Context, name string) {
	node := d.node(ctx, name)
	if node == "" {
		return
	}
	others := slices.DeleteFunc(d.known(), func(other string) bool { return d.node(ctx, other) != node })
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, other := range others {
		if e := d.events[other]; e != nil {
			e.failed = true
		}
	}
}

func (d *Dispatcher) done(name string, failed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.events[name]; e != nil {
		e.busy, e.failed = false, failed
	}
}

// once calls the script of the tick for events. It returns those that have more to do.
func (d *Dispatcher) once(ctx context.Context, retry bool, names []string) (more []string) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begin, ran, silent := time.Now(), false, ""
	results := d.script(call, names)
	took := time.Since(begin)
	for i, name := range names {
		again, err := d.ticked(ctx, name, begin, results[i])
		ran = ran || results[i].Ran
		if err != nil {
			d.warn(ctx, "tick of an event failed, trying again", err, slog.String("event", name))
			if !retry && !poll.IsReply(err) && !errors.Is(err, room.ErrUnknown) {
				silent = name
			}
			d.done(name, true)
			continue
		}
		d.progress()
		if again && !retry {
			more = append(more, name)
		} else {
			d.done(name, false)
		}
	}
	if ran {
		d.metrics.script.Observe(took.Seconds())
	}
	if silent != "" {
		d.suspect(ctx, silent)
	}
	return more
}

// ticked takes the result of a tick. A tick that too few replicas have has run.
func (d *Dispatcher) ticked(ctx context.Context, name string, begin time.Time, t room.Ticked) (more bool, err error) {
	late := errors.Is(t.Err, redis.ErrNotReplicated)
	if t.Err != nil && !late || !t.Ran {
		return false, t.Err
	}
	if late {
		d.warn(ctx, "too few replicas have a tick: no user is promoted until they have it", t.Err, slog.String("event", name))
	}
	if t.Promoted > 0 {
		failpoint.Hit(failpoint.Promoted)
		d.family.Wake(room.EntryStream(name))
	}
	d.mu.Lock()
	e := d.events[name]
	if e != nil && t.Table != nil {
		e.table, e.at, e.late = t.Table, begin, late
		e.empty = t.Table.Waiting+t.Table.Ready+t.Table.Admitted == 0
	}
	d.mu.Unlock()
	if e != nil && t.Table != nil && t.Table.State == room.Drawing {
		d.begin(name, e)
	}
	d.metrics.ticked(name, t.Tick)
	if t.Gap > 0 || t.Rewound {
		d.log.WarnContext(ctx, "ticks had stopped or the server is another one: no user is promoted or removed for now",
			slog.String("event", name), slog.Duration("gap", t.Gap), slog.Duration("hold", t.Hold), slog.Bool("rewound", t.Rewound))
	}
	return t.More && !late, nil
}

func (d *Dispatcher) warn(ctx context.Context, text string, err error, attrs ...slog.Attr) {
	if ctx.Err() == nil {
		d.sampled.Warn(d.log, text, append(attrs, logs.Err(err))...)
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
	if since := time.Since(d.progressed); since > stalledAfter+5*d.opts.PromoteInterval {
		return fmt.Errorf("no tick of any event has succeeded for %s", since.Round(time.Second))
	}
	return nil
}

var _ pipeline.Service = (*Dispatcher)(nil)
