package once

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/simulator"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

const (
	pluginName    = "once"
	ledgerSetting = "plugins.once.ledger.dsn"
	kindLedger    = "ledger" // of the endpoint of a kind, whose name is that of the kind
)

var errNotOpen = fmt.Errorf("once: the ledger is not open: %w: it opens when the services start, and closes when they stop", pipeline.ErrUnavailable)

// errNoLedger is reported by the start of a binary whose settings nobody has validated.
var errNoLedger = errors.New("once: plugins.once.ledger.dsn must be set, because a plugin has a kind of effects: " + dsnForms)

const dsnForms = "postgres://… for several instances, or sqlite:/path/of/a/file for one"

// Config is the section plugins.once of the settings.
type Config struct {
	// Ledger is the database in which effects are accepted and settled. It is required as soon as a
	// plugin has a kind.
	Ledger ledger.Config `yaml:"ledger"`
}

// Validate reports every mistake at once. An empty DSN is none, because a binary may have no kind.
func (c *Config) Validate() error {
	if c.Ledger.DSN.IsZero() {
		return nil
	}
	var p setting.Problems
	p.Under("ledger", c.Ledger.Validate())
	return p.Err()
}

// ValidateIn requires the ledger when an enabled plugin has a kind (app.Placed).
func (p *Plugin) ValidateIn(where app.Where) error {
	if len(where.NeededBy) == 0 || !p.config.Ledger.DSN.IsZero() {
		return nil
	}
	var problems setting.Problems
	problems.Check(false, "ledger.dsn", "must be set, because effects of the %s are stored there: %s", pluginsOf(where.NeededBy), dsnForms)
	return problems.Err()
}

// pluginsOf names one plugin or more, in a sentence.
func pluginsOf(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return "plugin " + names[0]
	}
	return "plugins " + strings.Join(names[:last], ", ") + " and " + names[last]
}

// Plugin is the capability: the ledger, and the workers that call for the effects of all kinds. Wire
// builds it before the plugins that have kinds. It opens nothing while there is no kind.
type Plugin struct {
	config Config
	topics pipeline.Topics
	dead   pipeline.DeadLetters
	redis  *redis.Plugin // nil: kinds have no streams
	found  *redis.Found  // the streams of all kinds
	names  []string      // of the kinds of New

	usedWhen []func() bool // see UsedWhen

	env    pipeline.Env
	routes *pipeline.Registry // nil before Register
	log    *slog.Logger
	ledger atomic.Pointer[ledger.Ledger]
	kinds  []*worker     // filled with ledger
	states chan struct{} // see stateOf
	skew   atomic.Int64
	// noClient is why a command can't ask the far side; nil: it can.
	noClient atomic.Pointer[error]
	claims   sync.RWMutex // held by TurnClock, so that nothing is claimed meanwhile
	metrics  *metrics
	sampled  *logs.Throttle // of a ledger that does not answer, which all kinds notice every few seconds
}

// NewPlugin returns the plugin with default settings. topics and dead letters are for kinds with a topic,
// and may be nil in a binary that has none.
func NewPlugin(topics pipeline.Topics, dead pipeline.DeadLetters) *Plugin {
	return &Plugin{config: Config{Ledger: ledger.DefaultConfig()}, topics: topics, dead: dead, log: slog.New(slog.DiscardHandler), states: make(chan struct{}, statesAtOnce),
		metrics: newMetrics(), sampled: logs.NewThrottle(warnEvery)}
}

// UseStreams gives kinds with via: streams their Redis. It returns p.
func (p *Plugin) UseStreams(shared *redis.Plugin) *Plugin {
	p.redis, p.found = shared, redis.NewFound(streamName)
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return pluginName }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Schemas implements pipeline.Migratable.
func (p *Plugin) Schemas(env pipeline.Env) []migration.Schema {
	if p.config.Ledger.DSN.IsZero() || !p.isUsed() {
		return nil
	}
	return []migration.Schema{ledger.Schema(p.config.Ledger, ledgerSetting, env.Logger)}
}

// Register implements pipeline.Plugin.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.env, p.routes, p.log = r.Env(), r, r.Env().Logger.With(slog.String(logs.Plugin, p.Name()))
	r.Offer(p) // it is a console.Contributor, an operate.Conditioned, and an operate.Operated with actions
	r.ErrorClasses(errorClasses()...)
	for _, schema := range p.Schemas(r.Env()) {
		r.Offer(schema) // it is an operate.Examined
	}
	kinds := func() []*worker { return pipeline.Offers[*worker](r) }
	r.Offer(ledgerExam{p, kinds})
	r.Service("once.ledger", &ledgerService{plugin: p, kinds: kinds})
	s := &workers{plugin: p, kinds: kinds}
	r.Service("once.workers", s)
	r.Offer(s) // operate.Remeasured
	r.Health(pluginName, s.check)
	r.Collect(p.metrics.collectors()...)
	return nil
}

// Commands implements app.Commander: what is neither a report nor an action.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	once := &cobra.Command{Use: pluginName, Example: "  millrace once simulator"}
	once.AddCommand(simulator.OnceCommand(), p.enqueueCommand(h))
	return []*cobra.Command{once}
}

func (p *Plugin) instance() string { return p.env.Instance }

// now is the time by which tokens and slots are used, which tests turn with the clock of the ledger.
func (p *Plugin) now() time.Time { return time.Now().Add(time.Duration(p.skew.Load())) }

// TurnClock moves the clock of the ledger forward, for tests: leases end, and retries are due. It waits for
// calls that run, because a lease does not end during a call of a living worker.
func (p *Plugin) TurnClock(d time.Duration) {
	p.claims.Lock()
	defer p.claims.Unlock()
	for _, w := range p.kinds {
		w.calls.Wait()
	}
	p.skew.Add(int64(d))
	for _, w := range p.kinds {
		w.wake()
	}
}

// kindOf returns a kind of this binary, or nil.
func (p *Plugin) kindOf(name string) *worker { return kindIn(p.kinds, name) }

func kindIn(kinds []*worker, name string) *worker {
	if i := slices.IndexFunc(kinds, func(w *worker) bool { return w.name == name }); i >= 0 {
		return kinds[i]
	}
	return nil
}

// ledgerService checks the schema and opens the ledger, if there is a kind. It waits for the database.
type ledgerService struct {
	plugin  *Plugin
	kinds   func() []*worker
	command bool // it calls for nothing, and says itself of which effects nobody does
}

// Start implements pipeline.Service.
func (s *ledgerService) Start(ctx context.Context) error {
	p, kinds := s.plugin, s.kinds()
	if len(kinds) == 0 {
		return nil
	}
	if p.config.Ledger.DSN.IsZero() {
		return errNoLedger
	}
	if err := p.env.Schemas.Prepare(ctx, ledger.Schema(p.config.Ledger, ledgerSetting, p.log), p.log); err != nil {
		return err
	}
	l, err := sqldb.Await(ctx, p.log, "ledger of effects", ledgerSetting, func() (*ledger.Ledger, error) {
		return ledger.Open(ctx, p.config.Ledger, ledger.Options{Instance: p.instance(), Log: p.log, Metrics: p.metrics.database, Command: s.command, Skew: &p.skew})
	})
	if err != nil {
		return err
	}
	all := make([]ledger.Kind, len(kinds))
	for i, k := range kinds {
		all[i] = k.effects.ledgerKind(p.instance())
		p.metrics.begin(k.name, k.results != nil)
	}
	if err := l.Register(ctx, all...); err != nil {
		return errors.Join(err, l.CloseContext(ctx))
	}
	if !s.command {
		p.warnOfAbsent(ctx, l, kinds)
	}
	p.kinds = kinds
	p.ledger.Store(l)
	return nil
}

// Stop implements pipeline.Service.
func (s *ledgerService) Stop(ctx context.Context) error {
	if l := s.plugin.ledger.Swap(nil); l != nil {
		return l.CloseContext(ctx)
	}
	return nil
}

// Intervals of the work that each instance does for all kinds.
const (
	sweepInterval   = 2 * time.Second
	measureInterval = 5 * time.Second
	tablesInterval  = 15 * time.Second
	// measureStale is the age of the last measurement at which the instance is not ready any more.
	measureStale = 3 * measureInterval
	// warnEvery is the shortest time between two log lines about the same work that failed.
	warnEvery = time.Minute
)

// workers is the service that runs the workers of all kinds. They begin when all services have started,
// because a kind may call with a client that its plugin starts later. While the service drains, it claims
// nothing, and waits for the calls that have started.
type workers struct {
	loop.Group
	plugin *Plugin
	kinds  func() []*worker

	mu      sync.Mutex
	running []*worker
	stopped bool
}

// Start implements pipeline.Service.
func (s *workers) Start(ctx context.Context) error {
	l := s.plugin.ledger.Load()
	if l == nil {
		return s.Group.Start(ctx)
	}
	loops := []func(context.Context){
		func(ctx context.Context) {
			loop.Every(ctx, sweepInterval, func(ctx context.Context) { s.sweep(ctx, l) })
		},
		func(ctx context.Context) {
			loop.Repeat(ctx, 0, func(ctx context.Context) time.Duration { s.measureTables(ctx, l); return tablesInterval })
		},
	}
	for _, w := range s.kinds() {
		loops = append(loops, func(ctx context.Context) {
			w.measure(ctx, l) // until then the instance is not ready
			loop.Every(ctx, measureInterval, func(ctx context.Context) { w.measure(ctx, l) })
		})
	}
	return s.Group.Start(ctx, loops...)
}

// Running implements pipeline.Phased.
func (s *workers) Running() {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.plugin.ledger.Load()
	if l == nil || s.stopped {
		return
	}
	s.running = s.kinds()
	for _, w := range s.running {
		if w.start(l); w.results != nil {
			w.results.start(l)
		}
	}
}

// Draining implements pipeline.Phased.
func (s *workers) Draining() { s.drain() }

// drain ends the claims, and returns the workers.
func (s *workers) drain() []*worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, w := range s.kinds() { // also before they run
		w.hints.end()
	}
	for _, w := range s.running {
		w.drain()
	}
	return s.running
}

func (s *workers) sweep(ctx context.Context, l *ledger.Ledger) {
	if err := l.Sweep(ctx); err != nil && ctx.Err() == nil {
		s.plugin.sampled.Warn(s.plugin.log, "the ledger of effects was not swept, which is tried again", logs.Err(err))
	}
}

// measureTables measures how large the tables are. Nothing else depends on it, and a table that is being
// rewritten answers late, so an error is logged only.
func (s *workers) measureTables(ctx context.Context, l *ledger.Ledger) {
	ctx, cancel := context.WithTimeout(ctx, measureInterval)
	defer cancel()
	if err := l.MeasureTables(ctx); err != nil {
		s.plugin.log.DebugContext(ctx, "the tables of the ledger of effects can't be measured", logs.Err(err))
	}
}

// Drain implements pipeline.Drainer.
func (s *workers) Drain(ctx context.Context) error {
	return wait(ctx, s.drain())
}

// Stop implements pipeline.Service. When ctx ends first, calls are ended, and their effects count as
// perhaps done.
func (s *workers) Stop(ctx context.Context) error {
	running := s.drain()
	err := wait(ctx, running)
	errs := []error{err}
	for _, w := range running {
		if w.abandon(); w.results != nil {
			errs = append(errs, w.results.stop(ctx))
		}
	}
	return errors.Join(append(errs, s.Group.Stop(ctx))...)
}

// wait waits for the calls of each kind, and then for its results, so that a kind whose calls go on delays no other.
func wait(ctx context.Context, running []*worker) error {
	errs := make([]error, len(running))
	var waiting sync.WaitGroup
	for i, w := range running {
		waiting.Go(func() {
			select {
			case <-w.ended:
				if w.results != nil {
					errs[i] = w.results.finish(ctx)
				}
			case <-ctx.Done():
				errs[i] = fmt.Errorf("once: %d calls of kind %s have not ended: %w", w.inFlight.Load(), w.name, ctx.Err())
			}
		})
	}
	waiting.Wait()
	return errors.Join(errs...)
}

// Remeasure implements operate.Remeasured.
func (s *workers) Remeasure(ctx context.Context) {
	s.mu.Lock()
	running, stopped := s.running, s.stopped
	s.mu.Unlock()
	l := s.plugin.ledger.Load()
	if l == nil || stopped {
		return
	}
	var measuring sync.WaitGroup
	for _, w := range running {
		measuring.Go(func() { w.measure(ctx, l) })
	}
	measuring.Wait()
}

// check implements the readiness check, from the last measurements alone.
func (s *workers) check(context.Context) error {
	var errs []error
	if s.plugin.ledger.Load() == nil {
		return nil
	}
	for _, w := range s.kinds() {
		if err := w.check(time.Now()); err != nil {
			errs = append(errs, fmt.Errorf("kind %s: %w", w.name, err))
		}
	}
	return errors.Join(errs...)
}

var (
	_ app.Commander         = (*Plugin)(nil)
	_ app.Placed            = (*Plugin)(nil)
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Migratable   = (*Plugin)(nil)
	_ pipeline.Drainer      = (*workers)(nil)
	_ pipeline.Phased       = (*workers)(nil)
)
