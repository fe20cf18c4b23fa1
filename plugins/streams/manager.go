package streams

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Activation is one stream that should run.
type Activation struct {
	ID         string // 1 to 300 bytes; see Kind.Stream
	TotalCount int64  // for the sizing; 0 when not known
	Paused     bool   // neither polled nor cleaned up
}

// Activations is the durable set of streams that should run, shared by all instances. Its methods
// must be safe for concurrent use.
//
// Only Deactivate removes an id. The Manager calls Activate for an id that is missing although its
// stream exists. Its entries would be stranded otherwise.
type Activations interface {
	// Active returns the complete set. It is called every Config.ReconcileInterval, after Refresh,
	// and when a reader finds its stream gone.
	Active(ctx context.Context) ([]Activation, error)
	// Activate adds id to the set; it is no error when it is there. It is called when an enqueue
	// finds no stream: before the stream is created (unless Options.Admit is set), and after. It is
	// also called when an idle stop came too late.
	Activate(ctx context.Context, id string) error
	// Deactivate takes id off the set, before the clean-up script runs; it is no error when it is
	// off.
	Deactivate(ctx context.Context, id string) error
}

// Options are the dependencies of a Manager. Kind, Config, Client, Activations and Instance are
// required.
type Options struct {
	Kind Kind
	// Config is called at every use, so that settings may be loaded after construction.
	Config func() Config
	// Client is called at every use. The Manager never closes the client.
	Client func() goredis.UniversalClient
	// Connect returns a client for one report, also where Client has none, such as redis.Server.Connect.
	// Nil: Client.
	Connect func(context.Context) (c goredis.UniversalClient, closeIt func(), err error)
	// Found finds the streams of several kinds with one search, if all of these share it. Nil: a search for this kind.
	Found       *redis.Found
	Activations Activations
	// Admit activates id for an enqueue that found no stream. False: the entry is answered Full,
	// and no stream is created. Nil: Activations.Activate.
	Admit func(ctx context.Context, id string) (bool, error)
	// Blocked is called in each round for an active stream that can't be used (ErrRefused or
	// ErrForeign). Nil: not called.
	Blocked func(ctx context.Context, id string) error
	// Created is called when a stream was created, before an entry is added. Nil: not called.
	Created func(ctx context.Context, id, incarnation string) error
	// Deleted is called when an idle stop has deleted a stream, so that its end is not taken for a
	// loss. An enqueue may have created the next incarnation already. Nil: not called.
	Deleted func(ctx context.Context, id, incarnation string) error
	// CallTimeout bounds one script call that adds entries or creates a stream. Zero: 5 s.
	CallTimeout time.Duration
	// Instance is unique among all instances. The reader's name is Instance-0.
	Instance string
	// Fence is poll.Options.Fence of the readers. Nil: none.
	Fence func() time.Time
	// Gate answers false to stop reading. Nil: always open.
	Gate func() bool
	// Ahead is poll.Options.Ahead of the readers.
	Ahead int
	// Owner returns this deployment's id, and is called at every use. Streams of another deployment
	// are not used. Nil or empty: owners are neither written nor checked.
	Owner func() string
	// Note returns what this instance says about a stream that it reads, as JSON in a canonical form, or nil. It
	// is written with the status of the instance, also when it alone has changed, and must not block. Nil: nothing.
	Note func(id string) json.RawMessage
	// Logger may be nil: nothing is logged.
	Logger *slog.Logger
	// Metrics are shared by all kinds, as SharedMetrics returns them. Nil: metrics that are not registered.
	Metrics *Metrics
	// ReaderMetrics are shared by all readers. Nil: metrics that are not registered.
	ReaderMetrics *poll.Metrics
}

// Manager owns the elastic streams of one kind in this instance. It reads the active set, starts
// and stops readers, adds entries, and deletes streams that have been drained for long enough.
//
// It is built offline. The route opens its Source, and Drain ends it. EnqueueBatch,
// Ensure, Inspect, Look and Sweep need only Redis, and work while the Source is not open. All
// methods are safe for concurrent use.
type Manager struct {
	opts Options // the defaults applied
	log  *slog.Logger

	scripts  scripts
	full     fullStreams
	enqueues chan struct{} // slots of enqueue calls under way
	refresh  chan struct{} // capacity 1
	active   activeCache
	inFlight inFlightCounts
	orphans  orphans

	wakeUps wakeUps
	sampler *logs.Throttle
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
	if o.ReaderMetrics == nil {
		o.ReaderMetrics = poll.NewMetrics()
	}
	if o.Gate == nil {
		o.Gate = func() bool { return true }
	}
	if o.Owner == nil {
		o.Owner = func() string { return "" }
	}
	if o.Admit == nil {
		o.Admit = func(ctx context.Context, id string) (bool, error) { return true, o.Activations.Activate(ctx, id) }
	}
	if o.Blocked == nil {
		o.Blocked = func(context.Context, string) error { return nil }
	}
	if o.Found == nil {
		o.Found = redis.NewFound(o.Kind.StreamPrefix + "<id>")
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = callTimeout
	}
	o.Metrics.initialize(o.Kind.Type)
	return &Manager{
		opts:     o,
		log:      o.Logger.With(slog.String("kind", o.Kind.Type)),
		scripts:  newScripts(),
		enqueues: make(chan struct{}, batchCalls),
		refresh:  make(chan struct{}, 1),
		active:   activeCache{read: o.Activations.Active, lock: make(chan struct{}, 1)},
		sampler:  logs.NewThrottle(warnEvery),
		inFlight: inFlightCounts{m: map[string]*inFlightCount{}},
		orphans:  orphans{since: map[string]orphan{}},
	}
}

// Kind returns what the Manager was built for.
func (m *Manager) Kind() Kind { return m.opts.Kind }

// Source returns all active streams of the kind as one source. It can be opened once at a time.
func (m *Manager) Source() pipeline.Source { return source{m} }

// Activity returns the idle watch of the route: a stream with a message in flight is not idle.
func (m *Manager) Activity() pipeline.Activity { return activity{m} }

// Refresh starts a round of the control loop now. It never blocks and is legal at any time.
func (m *Manager) Refresh() {
	select {
	case m.refresh <- struct{}{}:
	default: // one is waiting already
	}
}

func (m *Manager) opened() *subscription {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sub
}

// slots returns the concurrency of a stream with total targets in this instance.
func (m *Manager) slots(c Config, total int64) int {
	return Consumers(c.Tiers, total, c.MinConsumers, c.MaxConsumers)
}
