package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// ErrNotOpen is returned by Start when the Source is not open (not yet, or drained already): there
// is nobody who would take the entries.
var ErrNotOpen = errors.New("the source of elastic streams is not open")

// Activation is one stream that should run.
type Activation struct {
	ID         int64 // positive
	TotalCount int64 // for the sizing; 0 when not known
	Paused     bool  // neither polled nor cleaned up
}

// Activations is the durable set of streams that should run, shared by all instances. Its methods
// must be safe for concurrent use.
//
// Only Deactivate takes an id off: an id that goes missing in another way is put back by Activate
// for as long as its stream exists, since its entries would be stranded otherwise.
type Activations interface {
	// Active returns the whole set. It is asked every Config.Refresh, on a hint, and when a reader
	// finds its stream gone.
	Active(ctx context.Context) ([]Activation, error)
	// Activate puts id on the set; it is no error when it is there. Called when an enqueue found
	// the stream absent (before it is created, unless Options.Admit is set, and after) and when an idle stop came too late.
	Activate(ctx context.Context, id int64) error
	// Deactivate takes id off the set, before the clean-up script runs; it is no error when it is off.
	Deactivate(ctx context.Context, id int64) error
}

// Options is what a Manager needs. All but Admit, Blocked, Created, Fence, Gate, Owner, Logger, Metrics and ReaderMetrics are required.
type Options struct {
	Kind          Kind
	Config        func() Config                // asked at every use, so that settings may be loaded after construction
	Client        func() redis.UniversalClient // borrowed, never closed here; asked at every use
	Activations   Activations
	Admit         func(ctx context.Context, id int64) (bool, error)             // Activate for an enqueue that found no stream; false: the entry is answered Full, and no stream is created; nil: Activate
	Blocked       func(ctx context.Context, id int64) error                     // in each round, for an active stream that can't be used: ErrRefused or ErrForeign; nil: not reported
	Created       func(ctx context.Context, id int64, incarnation string) error // a stream was created, nothing was added to it yet; nil: not reported
	Instance      string                                                        // unique among all instances; the reader's name is Instance-0
	Fence         func() time.Time                                              // redispoll.ReaderConfig.Fence of the readers; nil: none
	Gate          func() bool                                                   // answers false to stop reading; nil: always open
	Owner         func() string                                                 // this deployment's id, asked at every use: streams of another one are left alone; nil or empty: owners are neither written nor respected
	Logger        *slog.Logger                                                  // nil: discards
	Metrics       *Metrics                                                      // shared by all kinds; nil: counts for nobody
	ReaderMetrics *redispoll.Metrics                                            // shared by all readers; nil: counts for nobody
}

// Manager owns the elastic streams of one kind in this instance: it finds out what should run,
// starts and stops readers, adds entries, and deletes what has been drained for long enough.
//
// It is built offline. Its life is that of its Source: opened by the route, ended by Drain. What
// only needs Redis (Enqueue, EnqueueBatch, Ensure, Inspect, Statuses, Sweep) works without it.
// All methods are safe for concurrent use.
type Manager struct {
	kind          Kind
	config        func() Config
	client        func() redis.UniversalClient
	activations   Activations
	admit         func(context.Context, int64) (bool, error)
	blocked       func(context.Context, int64) error
	created       func(context.Context, int64, string) error
	instance      string
	gate          func() bool
	fence         func() time.Time
	owner         func() string
	log           *slog.Logger
	metrics       *Metrics
	readerMetrics *redispoll.Metrics

	scripts  scripts
	lanes    *lanes
	enqueues chan struct{} // slots of enqueue calls under way
	hint     chan struct{} // capacity 1
	asker    asker
	hands    hands
	orphans  orphans

	notices *pipeline.Notices
	mu      sync.Mutex
	sub     *subscription // the open one
}

// NewManager returns the Manager of one kind, without any connection or goroutine.
func NewManager(o Options) *Manager {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Gate == nil {
		o.Gate = func() bool { return true }
	}
	if o.Owner == nil {
		o.Owner = func() string { return "" }
	}
	if o.Admit == nil {
		o.Admit = func(ctx context.Context, id int64) (bool, error) { return true, o.Activations.Activate(ctx, id) }
	}
	if o.Blocked == nil {
		o.Blocked = func(context.Context, int64) error { return nil }
	}
	o.Metrics.known(o.Kind.Type)
	return &Manager{
		kind: o.Kind, config: o.Config, client: o.Client, activations: o.Activations, admit: o.Admit, blocked: o.Blocked, created: o.Created,
		instance: o.Instance, gate: o.Gate, fence: o.Fence, owner: o.Owner, metrics: o.Metrics, readerMetrics: o.ReaderMetrics,
		log:      o.Logger.With(slog.String("kind", o.Kind.Type)),
		scripts:  newScripts(),
		lanes:    newLanes(),
		enqueues: make(chan struct{}, batchCalls),
		hint:     make(chan struct{}, 1),
		asker:    asker{ask: o.Activations.Active, turn: make(chan struct{}, 1)},
		notices:  pipeline.NewNotices(noticeEvery),
		hands:    hands{m: map[string]*hand{}},
		orphans:  orphans{since: map[int64]orphan{}},
	}
}

// Kind returns what the Manager was built for.
func (m *Manager) Kind() Kind { return m.kind }

// Source returns all active streams of the kind as one source. It can be opened once at a time.
func (m *Manager) Source() pipeline.Source { return source{m} }

// Activity returns the idle watch of the route: a stream with a message in hand is not idle.
func (m *Manager) Activity() pipeline.Activity { return activity{m} }

// Hint has the active set asked now. It never blocks and is legal at any time.
func (m *Manager) Hint() {
	select {
	case m.hint <- struct{}{}:
	default: // one is waiting already
	}
}

// Start starts the reader of id in this instance, or resizes it when it runs. total is the number
// of targets, 0 when not known. Stream and group are created when they are missing. A start and a
// stop of one id never overlap. It returns ErrNotOpen when the Source is not open.
//
// Start does not put id on the active set: what is not on it and has no entries ends by itself.
func (m *Manager) Start(ctx context.Context, id, total int64) error {
	sub := m.opened()
	if sub == nil {
		return fmt.Errorf("streams: start %s: %w", m.kind.Stream(id), ErrNotOpen)
	}
	if err := sub.start(ctx, Activation{ID: id, TotalCount: total}); err != nil {
		return fmt.Errorf("streams: start %s: %w", m.kind.Stream(id), err)
	}
	return nil
}

// Stop stops the reader of id in this instance: what no slot has begun is given back, what is in
// hand gets Config.StopTimeout to finish. The stream stays, and so do the readers of other
// instances. It does nothing when none runs. While id is on the active set the next round starts it
// again: to keep a stream from being read, pause it there.
func (m *Manager) Stop(ctx context.Context, id int64) error {
	sub := m.opened()
	if sub == nil {
		return nil
	}
	if err := sub.stop(ctx, id, stopAsked); err != nil {
		return fmt.Errorf("streams: stop %s: %w", m.kind.Stream(id), err)
	}
	return nil
}

// Running returns the ids that have a reader in this instance, in no order.
func (m *Manager) Running() []int64 {
	sub := m.opened()
	if sub == nil {
		return nil
	}
	return sub.ids()
}

func (m *Manager) opened() *subscription {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sub
}

// slots returns how many slots a stream with total targets gets here.
func (m *Manager) slots(c Config, total int64) int {
	return Consumers(c.Tiers, total, c.MinConsumers, c.MaxConsumers)
}
