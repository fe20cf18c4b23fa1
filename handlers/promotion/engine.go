package promotion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/streams"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// engine is what exists while the plugin runs: the open ledger and the client of the Money API. Its
// services fill it before the routes are opened, and nothing writes it while they are.
type engine struct {
	config   *Config
	metrics  *metrics
	instance string
	schemas  pipeline.SchemaPolicy
	log      *slog.Logger

	ledger      *ledger.Ledger
	ledgerID    string // filled with ledger
	api         money.API
	client      atomic.Pointer[money.Client]
	simulator   *moneysim.Server // nil: a Money API elsewhere
	settleTries int              // how often an answer is written down at most; 0: until settleTimeout
	progress    progress
	crowded     atomic.Bool // promotions wait for a place on the active set, as the last round of the feeder found

	bornCancelled seen // promotions whose records came after their cancellation
}

func newEngine(c *Config, m *metrics) *engine {
	return &engine{config: c, metrics: m, log: slog.New(slog.DiscardHandler)}
}

func (e *engine) prepare(env pipeline.Env, log *slog.Logger) {
	e.instance, e.schemas, e.log = env.Instance, env.Schemas, log
	e.metrics.client = e.client.Load
}

// ready reports whether the Money API takes calls. While it doesn't, nothing that ends in a call is read.
func (e *engine) ready() bool {
	c := e.client.Load()
	return c == nil || c.Ready()
}

// part is a service made of functions. draining may be nil.
type part struct {
	start    func(context.Context) error
	draining func()
	stop     func(context.Context) error

	mu      sync.Mutex
	running bool
}

func (p *part) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.start(ctx); err != nil {
		return err
	}
	p.running = true
	return nil
}

func (p *part) Stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		return nil
	}
	p.running = false
	return p.stop(ctx)
}

// Running implements pipeline.Phased.
func (*part) Running() {}

// Draining implements pipeline.Phased.
func (p *part) Draining() {
	if p.draining != nil {
		p.draining()
	}
}

// ended waits for goroutines whose context has ended, no longer than ctx.
func ended(ctx context.Context, work *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// moneyService opens the client of the Money API, and the simulated one when it is asked for.
func (e *engine) moneyService() *part {
	return &part{
		start: func(ctx context.Context) error {
			cfg := e.config.MoneyAPI
			if cfg.Simulator.Enabled {
				sim, err := moneysim.New(moneysim.Config{Listen: cfg.Simulator.Listen, BookPath: cfg.Simulator.Book, Faults: cfg.Simulator.Faults, Logger: e.log})
				if err != nil {
					return err
				}
				if err := sim.Start(ctx); err != nil {
					return err
				}
				e.simulator = sim
				cfg.URL = sim.URL()
				e.log.InfoContext(ctx, "simulated Money API", slog.String("url", cfg.URL))
			}
			client, err := money.New(cfg.Config, e.log)
			if err != nil {
				return err
			}
			e.api = client
			e.client.Store(client)
			return nil
		},
		draining: func() {
			if c := e.client.Load(); c != nil {
				c.Drain()
			}
		},
		stop: func(ctx context.Context) error {
			err := e.client.Load().Close()
			if e.simulator != nil {
				err = errors.Join(err, e.simulator.Stop(ctx))
			}
			return err
		},
	}
}

// errSimulatorInside says that the book of the simulated Money API is in another process's memory.
var errSimulatorInside = errors.New("the simulated Money API lives inside the service: run `millrace moneyapi` and set plugins.promotion.money_api.url")

// foreignMoney is moneyService for a process that pays nobody. A simulator of its own would know of no charge; only a book
// in a file can be read here, once the service that wrote it has ended. The error is errSimulatorInside; with optional
// there is then no Money API.
func (e *engine) foreignMoney(optional bool) pipeline.Service {
	money := e.moneyService()
	return &part{
		start: func(ctx context.Context) error {
			err := errSimulatorInside
			if sim := e.config.MoneyAPI.Simulator; !sim.Enabled || sim.Book != "" {
				err = money.Start(ctx)
			}
			if errors.Is(err, moneysim.ErrBookInUse) {
				err = errSimulatorInside
			}
			if optional && errors.Is(err, errSimulatorInside) {
				return nil
			}
			return err
		},
		stop: money.Stop,
	}
}

// ledgerService opens the ledger, waiting for its database, once the schema is as the process needs it.
func (e *engine) ledgerService() pipeline.Service {
	return &part{
		start: func(ctx context.Context) error {
			l, err := e.openLedger(ctx)
			if err != nil {
				return err
			}
			if e.ledgerID, err = l.ID(ctx); err != nil {
				return errors.Join(err, l.Close())
			}
			e.ledger = l
			return nil
		},
		stop: func(ctx context.Context) error { return e.ledger.CloseContext(ctx) },
	}
}

func (e *engine) openLedger(ctx context.Context) (*ledger.Ledger, error) {
	if err := e.schemas.Prepare(ctx, e.schema(e.log), e.log); err != nil {
		return nil, err
	}
	opts := ledger.Options{Instance: e.instance, Lease: e.config.MoneyAPI.lease(), Results: e.config.Results.Enabled,
		AcceptUnannounced: e.config.AcceptUnannounced, SameRequest: samePayout, MaxActive: e.config.Stream.MaxActive}
	return sqldb.Await(ctx, e.log, "ledger", ledgerSetting, func() (*ledger.Ledger, error) {
		return ledger.Open(ctx, e.config.Ledger, opts, e.log)
	})
}

// ledgerSetting is the path of the setting that says where the ledger is.
const ledgerSetting = "plugins.promotion.ledger.dsn"

func (e *engine) schema(log *slog.Logger) pipeline.Schema {
	return ledger.Schema(e.config.Ledger, ledgerSetting, log)
}

// streamConfig returns the settings of the streams. While promotions wait for a place, a drained stream gives its place up
// after one refresh of the active set.
func (e *engine) streamConfig() streams.Config {
	c := e.config.Stream.Config
	if e.crowded.Load() {
		c.IdleTimeout = min(c.IdleTimeout, c.Refresh)
	}
	return c
}

// seen remembers promotions, a bounded number of them.
type seen struct {
	mu  sync.Mutex
	all map[ledger.Promotion]bool
}

// mostSeen bounds the memory of seen; beyond it every promotion is a known one.
const mostSeen = 10_000

// first reports whether p was not seen before.
func (s *seen) first(p ledger.Promotion) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p] || len(s.all) == mostSeen {
		return false
	}
	if s.all == nil {
		s.all = map[ledger.Promotion]bool{}
	}
	s.all[p] = true
	return true
}

// progress remembers when this instance settled a payout last.
type progress struct{ last atomic.Int64 }

func (p *progress) mark() { p.last.Store(time.Now().UnixNano()) }

func (p *progress) age() time.Duration {
	last := p.last.Load()
	if last == 0 {
		return -1
	}
	return time.Since(time.Unix(0, last))
}

// stalledAfter is how old due work may be, without this instance settling anything, before it is not ready.
const stalledAfter = time.Minute

// progressing is the readiness check. It tells the age of the oldest unpaid payout of every promotion, and fails only
// when there is work that is due and this instance settles nothing.
func (e *engine) progressing(ctx context.Context) error {
	waiting, err := e.ledger.Waiting(ctx)
	if err != nil {
		return fmt.Errorf("ask the ledger what is waiting: %w", err)
	}
	oldest := map[string]float64{}
	var stalled []error
	for _, w := range waiting {
		oldest[w.Promotion.String()] = w.OldestUnpaid.Seconds()
		if w.Overdue > stalledAfter {
			stalled = append(stalled, fmt.Errorf("%s: a payout has been due for %s, and this instance settles nothing", w.Promotion, w.Overdue.Round(time.Second)))
		}
	}
	telemetry.Detail(ctx, "oldest_unpaid_seconds", oldest)
	if age := e.progress.age(); age >= 0 && age < stalledAfter {
		return nil
	}
	return errors.Join(stalled...)
}
