package feeder

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/streams"
)

const (
	// fullInterval is the pause after a round in which a stream was full. Its readers make room all
	// the time.
	fullInterval = 100 * time.Millisecond
	// maxConcurrent is the maximum number of promotions that a round feeds at once.
	maxConcurrent = 4
	// minLease is the shortest lease on the feeding of a promotion.
	minLease = 5 * time.Second
	// logInterval is the shortest time between two log lines about one failure of one promotion, or
	// about the ledger.
	logInterval = time.Minute
	// releaseTimeout bounds the release of the leases at a stop.
	releaseTimeout = 2 * time.Second
)

// Attribute keys of log lines, in addition to those of package pipeline.
const (
	logPromotionType = "promotion_type"
	logPromotionID   = "promotion_id"
)

// Options are what a Feeder works with.
type Options struct {
	Ledger            func() *ledger.Ledger       // open while the feeder runs
	Streams           map[string]*streams.Manager // by promotion type
	Config            Config
	AcceptUnannounced bool         // sweep also activates streams of unknown promotions
	Waiting           *atomic.Bool // set by each round: promotions wait for a place
	Metrics           *Metrics
	Log               *slog.Logger
}

// Feeder is a pipeline.Service with three loops: rounds over the promotions with work, sweeps for
// orphan streams, and measurements. It can be started once.
type Feeder struct {
	Options
	log      *slog.Logger
	failures *logs.Sampler[failure, error]
	sampled  *logs.Throttle       // of a ledger that does not answer, which each round notices
	unread   map[payouts.Type]int // unknown streams of the last sweep; only sweep uses it
	counted  time.Time            // last count of the settled payouts; guarded by measuring
	last     atomic.Pointer[Measurement]

	measuring sync.Mutex

	loops   loop.Group
	started bool // and not stopped
}

// New returns a feeder that is not started.
func New(o Options) *Feeder {
	return &Feeder{Options: o, unread: map[payouts.Type]int{}, failures: logs.NewSampler[failure, error](logInterval),
		sampled: logs.NewThrottle(logInterval), log: o.Log.With(slog.String(logs.Component, "feeder"))}
}

// Start starts the loops. Measuring is a loop of its own: a round that waits for Redis must not
// look as if the ledger did not answer.
func (f *Feeder) Start(ctx context.Context) error {
	err := f.loops.Start(ctx,
		func(ctx context.Context) { loop.Repeat(ctx, f.Config.Interval, f.round) },
		func(ctx context.Context) { loop.Every(ctx, f.Config.SweepInterval, f.sweepAll) },
		func(ctx context.Context) { loop.Repeat(ctx, 0, f.measureAll) })
	if err != nil {
		return fmt.Errorf("feeder: %w", err)
	}
	f.started = true
	return nil
}

// Stop ends the loops and releases this instance's leases, so that other instances can feed its
// promotions at once.
func (f *Feeder) Stop(ctx context.Context) error {
	if err := f.loops.Stop(ctx); err != nil || !f.started {
		return err
	}
	f.started = false
	f.logFailures(ctx, f.failures.Rest())
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if err := f.Ledger().ReleaseFeeder(ctx); err != nil {
		f.log.WarnContext(ctx, "promotions not released, their next feeder waits for the lease", logs.Err(err))
	}
	return nil
}

func (f *Feeder) sweepAll(ctx context.Context) {
	for t, m := range f.Streams {
		err := f.sweep(ctx, payouts.Type(t), m)
		if err != nil && ctx.Err() == nil {
			f.sampled.Warn(f.log, "sweep failed, tried again", slog.String(logPromotionType, t), slog.Duration("in", f.Config.SweepInterval), logs.Err(err))
		}
	}
}
