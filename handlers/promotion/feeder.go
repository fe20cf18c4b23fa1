package promotion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/killpoint"
	"github.com/millrace-io/millrace/plugins/redispoll"
	"github.com/millrace-io/millrace/plugins/streams"
)

// feeder is the only writer into streams beside accept, and the one mechanism for overflow, rebuild and
// healing: it looks at every promotion with unsettled payouts that is not paused, and enqueues what has no
// hint, what lost its hint with its stream, and what is overdue. Over all instances one feeds a promotion. It also gives
// free places on the active set to the promotions that wait for one.
type feeder struct {
	run      *engine
	managers map[string]*streams.Manager
	log      *slog.Logger
	unread   map[ledger.Type]int // streams of no known promotion that the last sweep found; sweepLoop's own
	notFed   *pipeline.Sampler[failure, error]
	counted  time.Time // when measure counted what is settled; measureLoop's own

	end  context.CancelFunc
	done sync.WaitGroup
}

const (
	// fullPause is how soon a promotion is looked at again whose stream was full: its readers make
	// room all the time.
	fullPause = 100 * time.Millisecond
	// feederTargets is how many promotions are fed at once.
	feederTargets = 4
	// feederLeastLease is the shortest time for which an instance owns the feeding of a promotion.
	feederLeastLease = 5 * time.Second
	// notFedEvery is the least time between two log lines about one failure.
	notFedEvery = time.Minute
	// releaseTimeout bounds what a stop does so that the next feeder need not wait for that lease.
	releaseTimeout = 2 * time.Second
)

func newFeeder(run *engine, managers map[string]*streams.Manager, log *slog.Logger) *feeder {
	return &feeder{run: run, managers: managers, unread: map[ledger.Type]int{}, notFed: pipeline.NewSampler[failure, error](notFedEvery),
		log: log.With(slog.String(pipeline.LogComponent, "feeder"))}
}

// Start begins to look. The feeder runs once.
func (f *feeder) Start(ctx context.Context) error {
	ctx, f.end = context.WithCancel(context.WithoutCancel(ctx))
	f.done.Go(func() { f.feedLoop(ctx) })
	f.done.Go(func() { f.sweepLoop(ctx) })
	f.done.Go(func() { f.measureLoop(ctx) })
	return nil
}

// Stop ends the loops, and lets other instances feed at once what this one was the feeder of. What a round was about to do is
// done by the next one, anywhere.
func (f *feeder) Stop(ctx context.Context) error {
	if f.end == nil {
		return nil
	}
	f.end()
	if err := ended(ctx, &f.done); err != nil {
		return err
	}
	f.end = nil
	f.logNotFed(ctx, f.notFed.Rest())
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if err := f.run.ledger.ReleaseFeeder(ctx); err != nil {
		f.log.WarnContext(ctx, "promotions not released, their next feeder waits for the lease", pipeline.Err(err))
	}
	return nil
}

func (f *feeder) feedLoop(ctx context.Context) {
	timer := time.NewTimer(f.run.config.Feeder.Interval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		pause := f.run.config.Feeder.Interval
		if f.round(ctx) {
			pause = min(pause, fullPause)
		}
		timer.Reset(pause)
	}
}

func (f *feeder) sweepLoop(ctx context.Context) {
	tick := time.NewTicker(f.run.config.Feeder.Sweep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for kind, m := range f.managers {
			err := f.sweep(ctx, ledger.Type(kind), m)
			if err != nil && ctx.Err() == nil {
				f.log.WarnContext(ctx, "sweep failed, tried again", slog.Duration("in", f.run.config.Feeder.Sweep), pipeline.Err(err))
			}
		}
	}
}

// round looks at every unfinished promotion once, and reports whether one has more to feed than fitted.
func (f *feeder) round(ctx context.Context) (more bool) {
	work, err := f.run.ledger.Unfinished(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.log.WarnContext(ctx, "can't ask the ledger for unfinished promotions", pipeline.Err(err))
		}
		return false
	}
	admitted := f.admit(ctx, work)
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(feederTargets)
	for _, w := range work {
		manager := f.managers[string(w.Type)]
		if manager == nil {
			continue // another version's type: its own instances feed it
		}
		if w.Queued && !admitted[w.Promotion] {
			continue
		}
		group.Go(func() error {
			full, err := f.promotion(ctx, manager, w)
			if err != nil && ctx.Err() == nil {
				f.run.metrics.failures.WithLabelValues(string(w.Type)).Inc()
				f.failed(w.Promotion, err)
			}
			mu.Lock()
			defer mu.Unlock()
			more = more || full
			return nil // one promotion's failure is not the others'
		})
	}
	_ = group.Wait() // no function returns an error
	f.logNotFed(ctx, f.notFed.Due())
	return more
}

// admit gives free places to promotions that wait for one, and returns those that got one.
func (f *feeder) admit(ctx context.Context, work []ledger.Work) map[ledger.Promotion]bool {
	crowded := slices.ContainsFunc(work, func(w ledger.Work) bool { return w.Queued })
	f.run.crowded.Store(crowded)
	if !crowded {
		return nil
	}
	list, err := f.run.ledger.AdmitWaiting(ctx)
	if err != nil && ctx.Err() == nil {
		f.log.WarnContext(ctx, "free places not given to waiting promotions, tried again next round", pipeline.Err(err))
	}
	admitted := make(map[ledger.Promotion]bool, len(list))
	for _, p := range list {
		admitted[p] = true
	}
	return admitted
}

// failure is what failed for one promotion: a key of the log sampler.
type failure struct {
	ledger.Promotion
	class string
}

// Classes of failures of the feeder.
const (
	failureRefused = "refused" // Redis refuses the key of the stream
	failureForeign = "foreign" // the stream belongs to another deployment
	failureOther   = "other"
)

// failed notes that a promotion could not be fed.
func (f *feeder) failed(p ledger.Promotion, err error) {
	class := failureOther
	switch {
	case errors.Is(err, streams.ErrRefused):
		class = failureRefused
	case errors.Is(err, streams.ErrForeign):
		class = failureForeign
	}
	f.notFed.Add(failure{p, class}, 1, err)
}

func (f *feeder) logNotFed(ctx context.Context, lines []pipeline.Sample[failure, error]) {
	for _, l := range lines {
		f.log.WarnContext(ctx, "promotion not fed, tried again", slog.String(logPromotionType, string(l.Key.Type)),
			slog.Int64(logPromotionID, l.Key.ID), slog.String("class", l.Key.class), slog.Int("suppressed", l.Count-1), pipeline.Err(l.Latest))
	}
}

// promotion feeds one promotion, if this instance is its feeder, and reports whether more is waiting.
func (f *feeder) promotion(ctx context.Context, m *streams.Manager, w ledger.Work) (more bool, err error) {
	mine, err := f.run.ledger.LeaseFeeder(ctx, w.Promotion, max(3*f.run.config.Feeder.Interval, feederLeastLease))
	if err != nil || !mine {
		return false, err
	}
	// Asked again under the lease: another feeder may have recorded it since the round began.
	if w.Incarnation, err = f.run.ledger.Incarnation(ctx, w.Promotion); err != nil {
		return false, err
	}
	st, err := m.Inspect(ctx, w.ID)
	if err != nil {
		return false, err
	}
	if st.Foreign { // its payouts wait; the active set makes the streams' Manager report it, and start it when it is free
		_, err := f.run.ledger.Admit(ctx, w.Promotion)
		return false, err
	}
	if err := f.recordLoss(ctx, w, st); err != nil {
		return false, err
	}
	if w.Incarnation == "" && st.Exists && st.Incarnation != "" { // a stream that is not on record would be lost unnoticed
		if err := f.run.ledger.AdoptActive(ctx, w.Promotion, st.Incarnation); err != nil {
			return false, err
		}
	}
	limit, grace := f.run.config.Feeder.Batch, f.run.config.Feeder.Grace
	for _, net := range []struct {
		reason string
		when   bool
		rows   func() ([]ledger.Feed, error)
	}{
		{fedNone, true, func() ([]ledger.Feed, error) { return f.run.ledger.FeedNone(ctx, w.Promotion, limit) }},
		{fedOverdue, true, func() ([]ledger.Feed, error) { return f.run.ledger.FeedOverdue(ctx, w.Promotion, grace, limit) }},
		{fedLostTail, st.Drained, func() ([]ledger.Feed, error) { return f.run.ledger.FeedLostTail(ctx, w.Promotion, grace, limit) }},
	} {
		if !net.when {
			continue
		}
		rows, err := net.rows()
		if err != nil {
			return more, err
		}
		fed, full, err := f.feed(ctx, m, w.Promotion, rows)
		f.run.metrics.fed.WithLabelValues(string(w.Type), net.reason).Add(float64(fed))
		if errors.Is(err, errNoPlace) {
			return false, nil // it waits now
		}
		if err != nil {
			return more, err
		}
		more = more || full || len(rows) == limit
		if full {
			break
		}
	}
	return more, nil
}

// recordLoss notices a stream that is gone, or was made anew: every hint that was in it is lost.
func (f *feeder) recordLoss(ctx context.Context, w ledger.Work, st streams.State) error {
	if w.Incarnation == "" || w.Incarnation == st.Incarnation {
		return nil
	}
	n, booked, err := f.run.ledger.Lost(ctx, w.Promotion, w.Incarnation, st.Incarnation)
	if err != nil {
		return fmt.Errorf("record the loss of the stream: %w", err)
	}
	if !booked {
		return nil // it was cleaned up in order meanwhile, or is another one already
	}
	f.run.metrics.lost.WithLabelValues(string(w.Type)).Inc()
	f.log.WarnContext(ctx, "stream was lost, its payouts are enqueued again", slog.String(logPromotionType, string(w.Type)),
		slog.Int64(logPromotionID, w.ID), slog.Int64("payouts", n), slog.Bool("gone", !st.Exists))
	return nil
}

var (
	errStreamChanged = errors.New("the stream was created again meanwhile")
	errNoPlace       = errors.New("no place on the active set")
)

// feed enqueues rows, marks those that were added, and reports whether the stream is full. A crash
// between the two repeats a hint, which the ledger absorbs.
func (f *feeder) feed(ctx context.Context, m *streams.Manager, p ledger.Promotion, rows []ledger.Feed) (fed int, full bool, err error) {
	if len(rows) == 0 {
		return 0, false, nil
	}
	if ok, err := f.run.ledger.Admit(ctx, p); err != nil {
		return 0, false, err
	} else if !ok {
		return 0, false, errNoPlace
	}
	if err := m.Ensure(ctx, p.ID); err != nil {
		return 0, false, err
	}
	m.Hint()
	st, err := m.Inspect(ctx, p.ID)
	if err != nil {
		return 0, false, err
	}
	same, err := f.run.ledger.Adopt(ctx, p, st.Incarnation)
	if err != nil {
		return 0, false, err
	}
	if !same {
		return 0, false, errStreamChanged
	}
	entries := make([]redispoll.Entry, len(rows))
	for i, r := range rows {
		entries[i] = redispoll.Entry{Key: string(r.RecordKey), UUID: r.Key.String(), Message: r.Payload, Headers: r.Headers}
	}
	added, outcome, err := m.EnqueueBatch(ctx, p.ID, entries)
	killpoint.Reach(killpoint.FeederBatch)
	if _, markErr := f.run.ledger.MarkFed(ctx, p, st.Incarnation, rows[:added]); markErr != nil {
		err = errors.Join(err, markErr)
	}
	return added, outcome == streams.Full, err
}
