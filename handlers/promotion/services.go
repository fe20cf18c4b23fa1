package promotion

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/slots"
	far "github.com/millrace-io/millrace/plugins/once/simulator"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/streams"
)

// resources are what the plugin's services open: the ledger, the client of the Money API and the
// streams' Redis. The services fill them before the first route opens. Nothing writes them while
// routes are open.
type resources struct {
	config   *Config
	instance string
	schemas  migration.Policy
	log      *slog.Logger
	metrics  *ledger.Metrics

	ledger       *ledger.Ledger
	ledgerID     string // filled with ledger
	api          money.API
	client       atomic.Pointer[money.Client]
	begins       *slots.Slots      // see payout.Processor
	simulator    *simulator.Server // nil: the Money API is another process
	progress     payout.Progress
	recent       payout.Recent
	opened       atomic.Pointer[ledger.Ledger] // ledger, for pages, which may be asked for before
	redisAway    atomic.Pointer[error]         // why a command has no Redis
	since        atomic.Pointer[time.Time]     // when this process began to pay
	streamsRedis atomic.Pointer[redis.Server]
	// the last round of the feeder found promotions that wait for a place on the active set
	waiting atomic.Bool
}

func newResources(c *Config) *resources {
	return &resources{config: c, log: slog.New(slog.DiscardHandler), metrics: ledger.NewMetrics()}
}

// use takes instance name, schema policy and log from the process. It is called before the services
// start.
func (r *resources) use(env pipeline.Env, log *slog.Logger) {
	r.instance, r.schemas, r.log = env.Instance, env.Schemas, log
}

// ready reports whether the Money API takes calls. The routes that call it read nothing while it
// does not.
func (r *resources) ready() bool {
	c := r.client.Load()
	return c == nil || c.Ready()
}

// clientMetrics collects the metrics of the Money API's client. It describes none of them: the
// client does not exist when collectors are registered.
type clientMetrics struct{ *resources }

func (clientMetrics) Describe(chan<- *prometheus.Desc) {}

func (c clientMetrics) Collect(out chan<- prometheus.Metric) {
	if client := c.client.Load(); client != nil {
		for _, one := range client.Collectors() {
			one.Collect(out)
		}
	}
}

// simulated is 1 while the Money API is simulated in this process.
func (r *resources) simulated() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_money_simulated",
		Help: "1 if this instance calls the simulated Money API that it runs itself, so nothing is paid, otherwise 0.",
	}, func() float64 {
		if r.config.MoneyAPI.Simulator.Enabled {
			return 1
		}
		return 0
	})
}

// service is a pipeline.Service made of functions. draining may be nil.
type service struct {
	start    func(context.Context) error
	draining func()
	stop     func(context.Context) error

	mu      sync.Mutex
	running bool
}

func (s *service) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(ctx); err != nil {
		return err
	}
	s.running = true
	return nil
}

func (s *service) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil
	}
	s.running = false
	return s.stop(ctx)
}

func (*service) Running() {}

func (s *service) Draining() {
	if s.draining != nil {
		s.draining()
	}
}

// startsPerSlot is how many payouts are started per call slot of the process.
const startsPerSlot = 2

// ahead returns how many payouts of one stream may be started. It is a quarter of those of the
// process, so that a slow stream leaves the rest to others.
func (c *MoneyConfig) ahead() int { return max(1, startsPerSlot*c.Concurrency/4) }

// moneyService opens the client of the Money API, and starts the simulated Money API if the
// settings enable it.
func (r *resources) moneyService() *service {
	return &service{
		start: func(ctx context.Context) error {
			cfg := r.config.MoneyAPI
			if cfg.Simulator.Enabled {
				sim, err := simulator.New(simulator.Config{Listen: cfg.Simulator.Listen, JournalPath: cfg.Simulator.Journal, Faults: cfg.Simulator.Faults, Logger: r.log})
				if err != nil {
					return err
				}
				if err := sim.Start(ctx); err != nil {
					return err
				}
				r.simulator = sim
				cfg.URL = sim.URL()
				r.log.InfoContext(ctx, "simulated Money API", slog.String("url", cfg.URL))
			}
			client, err := money.New(cfg.Config, r.log)
			if err != nil {
				return err
			}
			r.api, r.begins = client, slots.New(startsPerSlot*cfg.Concurrency)
			r.client.Store(client)
			now := time.Now().UTC()
			r.since.Store(&now)
			return nil
		},
		draining: func() {
			if c := r.client.Load(); c != nil {
				r.begins.Close()
				c.Drain()
			}
		},
		stop: func(ctx context.Context) error {
			err := r.client.Load().Close()
			if r.simulator != nil {
				err = errors.Join(err, r.simulator.Stop(ctx))
			}
			return err
		},
	}
}

// commandMoney is moneyService for a command. A simulator that a command starts has no charges: a
// command can read only a journal file, after the service that wrote it has ended. Without one the
// start fails with campaign.ErrSimulatorInside. With optional it succeeds, and there is no Money API.
func (r *resources) commandMoney(optional bool) pipeline.Service {
	money := r.moneyService()
	return &service{
		start: func(ctx context.Context) error {
			err := campaign.ErrSimulatorInside
			if sim := r.config.MoneyAPI.Simulator; !sim.Enabled || sim.Journal != "" {
				err = money.Start(ctx)
			}
			if errors.Is(err, far.ErrJournalInUse) {
				err = campaign.ErrSimulatorInside
			}
			if optional && errors.Is(err, campaign.ErrSimulatorInside) {
				return nil
			}
			return err
		},
		stop: money.Stop,
	}
}

// ledgerService checks the schema and opens the ledger. It waits for the database. toPay checks its
// sequences too: a command must also run on a ledger that is being repaired.
func (r *resources) ledgerService(toPay bool) pipeline.Service {
	return &service{
		start: func(ctx context.Context) error {
			l, err := r.openLedger(ctx)
			if err != nil {
				return err
			}
			if r.ledgerID, err = l.ID(ctx); err != nil {
				return errors.Join(err, l.Close())
			}
			if toPay {
				if err := l.CheckSequences(ctx); err != nil {
					return errors.Join(err, l.Close())
				}
			}
			r.ledger = l
			r.opened.Store(l)
			return nil
		},
		stop: func(ctx context.Context) error { return r.ledger.CloseContext(ctx) },
	}
}

func (r *resources) openLedger(ctx context.Context) (*ledger.Ledger, error) {
	if err := r.schemas.Prepare(ctx, r.schema(r.log), r.log); err != nil {
		return nil, err
	}
	opts := ledger.Options{Instance: r.instance, Metrics: r.metrics, Lease: r.config.MoneyAPI.lease(), OutcomeEvents: r.config.Results.Enabled,
		AcceptUnannounced: r.config.AcceptUnannounced, SameRequest: sameRequest, MaxActive: r.config.Stream.MaxActive}
	return sqldb.Await(ctx, r.log, "ledger", ledgerSetting, func() (*ledger.Ledger, error) {
		return ledger.Open(ctx, r.config.Ledger, opts, r.log)
	})
}

func sameRequest(t payouts.Type, stored, offered []byte) bool {
	return promotiontype.SameRequest(string(t), stored, offered)
}

// ledgerSetting is the path of the setting that says where the ledger is.
const ledgerSetting = "plugins.promotion.ledger.dsn"

func (r *resources) schema(log *slog.Logger) migration.Schema {
	return ledger.Schema(r.config.Ledger, ledgerSetting, log)
}

// streamConfig returns the settings of the streams. While promotions wait for a place, a drained
// stream leaves the active set after one reconcile interval.
func (r *resources) streamConfig() streams.Config {
	c := r.config.Stream.Config
	if r.waiting.Load() {
		c.IdleTimeout = min(c.IdleTimeout, c.ReconcileInterval)
	}
	return c
}
