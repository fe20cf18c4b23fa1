package middleware

import (
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
)

// Options are the knobs of the chain; the zero value has the documented defaults.
type Options struct {
	// PublishTimeout bounds every publish of the chain itself: outputs, retry records, dead
	// letters. Zero: 10s.
	PublishTimeout time.Duration
	// MaxStuck is how many handlers may be over their longest hold at once before the chain fails
	// the process. Zero: 8.
	MaxStuck int
	// Around wraps the handler of each route, once per route, before the first message. It is
	// innermost, inside the time limit and the recovery of panics: its errors, panics and outputs
	// count as the handler's. A result of nil leaves the handler as it is. Nil: nothing.
	Around func(r pipeline.Route, handle message.HandlerFunc) message.HandlerFunc
}

// Chain wraps handlers. It is a pipeline.Failer: see Failed. Safe for concurrent use.
type Chain struct {
	opts     Options
	log      *slog.Logger
	tracer   trace.Tracer
	routes   *pipeline.Registry
	metrics  *metrics
	stuck    *stuckWatch
	failures *pipeline.Sampler[failureKey, failed]
	failed   chan error

	drainOnce sync.Once
	draining  chan struct{} // closed when the drain begins
}

// reportEvery is the least time between two log lines about failures of one kind.
const reportEvery = time.Minute

// New returns a chain for the routes of reg. It registers its collectors there, and a service that
// logs at its stop how many failures no line has reported yet.
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
	c.failures = pipeline.NewSampler[failureKey, failed](reportEvery)
	c.stuck = newStuckWatch(env.Logger, opts.MaxStuck, c.metrics, c.fail)
	reg.Collect(c.metrics.collectors()...)
	reg.Service("middleware", lastFailures{c})
	return c
}

// Wrap puts the chain around the handler of a route. Read the lines from the bottom: the last one
// is the outermost.
func (c *Chain) Wrap(r pipeline.Route) message.HandlerFunc {
	h := r.Handle
	if c.opts.Around != nil {
		if around := c.opts.Around(r, h); around != nil {
			h = around // the binary's own; all that follows treats it as part of the handler
		}
	}
	h = recoverPanics(h)                // a panic becomes an error that all others can treat as one
	h = c.timeout(r, h)                 // bounds the handler alone, never the publishing around it
	h = correlate(h)                    // outputs carry the id before they are published
	h = c.publish(r, h)                 // a failed publish fails the message
	h = recoverPanics(h)                // a sink may panic too
	h = c.routeFailures(r, h)           // nothing outside it can fail a message
	h = watchActivity(r.Activity, h)    // also in flight while its retry record is written
	h = c.trace(r, h)                   // the span covers the retry and dead-letter publishes
	return c.metrics.measure(r.Name, h) // outermost: sees everything, also what tracing costs
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
