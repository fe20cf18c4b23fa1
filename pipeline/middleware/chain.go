package middleware

import (
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// Options are the knobs of the chain; the zero value has the documented defaults.
type Options struct {
	// PublishTimeout bounds every publish of the chain itself: outputs, retry records, dead
	// letters. Zero: 10s.
	PublishTimeout time.Duration
	// MaxStuck is how many handlers may be over their longest hold at once before the chain fails
	// the process. Zero: 8.
	MaxStuck int
}

// Chain wraps handlers. It is a pipeline.Failer: see Failed. Safe for concurrent use.
type Chain struct {
	opts     Options
	log      *slog.Logger
	tracer   trace.Tracer
	routes   *pipeline.Registry
	metrics  *metrics
	stuck    *stuckWatch
	failures *logs.Sampled[failureKey, failed]
	failed   chan error
	works    sync.Map // of *work, by route

	drainOnce sync.Once
	draining  chan struct{} // closed when the drain begins
}

// reportEvery is the least time between two log lines about failures of one kind.
const reportEvery = time.Minute

// New returns a chain for the routes of reg. It registers its collectors there, and the
// service that logs repeated failures.
func New(reg *pipeline.Registry, opts Options) *Chain {
	if opts.PublishTimeout <= 0 {
		opts.PublishTimeout = 10 * time.Second
	}
	if opts.MaxStuck <= 0 {
		opts.MaxStuck = 8
	}
	env := reg.Env()
	c := &Chain{
		opts:    opts,
		log:     env.Logger,
		tracer:  env.Tracer.Tracer("github.com/millrace-io/millrace/pipeline/middleware"),
		routes:  reg,
		metrics: newMetrics(),
		failed:  make(chan error, 1),

		draining: make(chan struct{}),
	}
	c.failures = logs.NewSampled(reportEvery, func(s logs.Sample[failureKey, failed]) {
		c.logFailure(slog.LevelWarn, s.Key, s.Latest, s.Count-1, s.Late())
	})
	c.stuck = newStuckWatch(env.Logger, opts.MaxStuck, c.fail)
	reg.Collect(c.metrics.collectors()...)
	reg.Offer(c) // operate.WorkTeller and operate.MeasureTeller
	reg.Service("middleware", c.failures)
	return c
}

// Wrap puts the chain around the handler of a route (pipeline.RuntimeOptions.Wrap).
func (c *Chain) Wrap(r pipeline.Route) (handle message.HandlerFunc, received func(*message.Message)) {
	w := c.newRoute(r)
	if r.HandleBatch != nil {
		return w.batch, w.received
	}
	return w.single(), w.received
}

// Failed delivers one error: too many handlers are stuck, or a message can be neither handled nor
// dead-lettered.
func (c *Chain) Failed() <-chan error { return c.failed }

func (c *Chain) fail(err error) {
	select {
	case c.failed <- err:
	default: // the first reason is the one that counts
	}
}

var _ pipeline.Failer = (*Chain)(nil)
