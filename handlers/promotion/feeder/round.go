package feeder

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/streams"
)

// round feeds each promotion that may need it once. One statement finds them, so a round costs a
// promotion that only waits for retries nothing. It returns the pause until the next round, which is
// short while a promotion has more to enqueue.
func (f *Feeder) round(ctx context.Context) time.Duration {
	work, err := f.Ledger().ToFeed(ctx, f.Config.GracePeriod)
	if err != nil {
		if ctx.Err() == nil {
			f.sampled.Warn(f.log, "promotions to feed not read from the ledger", logs.Err(err))
		}
		return f.Config.Interval
	}
	admitted := f.admit(ctx, work)
	var more atomic.Bool
	var group errgroup.Group
	group.SetLimit(maxConcurrent)
	for _, u := range work {
		m := f.Streams[string(u.Type)]
		if m == nil {
			continue // a type of another version, whose instances feed it
		}
		if u.WaitsForPlace && !admitted[u.Promotion] {
			continue
		}
		group.Go(func() error {
			full, err := f.Feed(ctx, m, u)
			if err != nil && ctx.Err() == nil {
				f.Metrics.failures.WithLabelValues(string(u.Type)).Inc()
				f.failed(u.Promotion, err)
			}
			if full {
				more.Store(true)
			}
			return nil // the failure of one promotion does not stop the others
		})
	}
	_ = group.Wait() // no function returns an error
	f.logFailures(ctx, f.failures.Due())
	if more.Load() {
		return min(f.Config.Interval, fullInterval)
	}
	return f.Config.Interval
}

// admit gives free places to promotions that wait for one, and returns those that got one.
func (f *Feeder) admit(ctx context.Context, work []ledger.UnfinishedPromotion) map[payouts.Promotion]bool {
	waiting := slices.ContainsFunc(work, func(u ledger.UnfinishedPromotion) bool { return u.WaitsForPlace })
	f.Waiting.Store(waiting)
	if !waiting {
		return nil
	}
	list, err := f.Ledger().AdmitWaiting(ctx)
	if err != nil && ctx.Err() == nil {
		f.sampled.Warn(f.log, "free places not given to waiting promotions, tried again next round", logs.Err(err))
	}
	admitted := make(map[payouts.Promotion]bool, len(list))
	for _, p := range list {
		admitted[p] = true
	}
	return admitted
}

type failure struct {
	payouts.Promotion
	class string
}

// Classes of failures.
const (
	failureRefused = "refused" // Redis refuses the key of the stream
	failureForeign = "foreign" // the stream belongs to another deployment
	failureOther   = "other"
)

func (f *Feeder) failed(p payouts.Promotion, err error) {
	class := failureOther
	switch {
	case errors.Is(err, streams.ErrRefused):
		class = failureRefused
	case errors.Is(err, streams.ErrForeign):
		class = failureForeign
	}
	f.failures.Add(failure{p, class}, 1, err)
}

func (f *Feeder) logFailures(ctx context.Context, lines []logs.Sample[failure, error]) {
	for _, l := range lines {
		f.log.WarnContext(ctx, "promotion not fed, tried again", slog.String(logPromotionType, string(l.Key.Type)),
			slog.Int64(logPromotionID, l.Key.ID), slog.String("class", l.Key.class), slog.Int("suppressed", l.Count-1), logs.Err(l.Latest), l.Late())
	}
}
