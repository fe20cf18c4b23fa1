package promotion

import (
	"context"
	"time"
)

// totalsInterval is how often the settled payouts are counted: every instance does it, and it reads a row a promotion.
const totalsInterval = 15 * time.Second

// measureLoop measures at the feeder's pace, and beside it: a round that waits for Redis must not look like a silent ledger.
func (f *feeder) measureLoop(ctx context.Context) {
	tick := time.NewTicker(f.run.config.Feeder.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.measure(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// measure sets what metrics tell of the ledger: the age of the oldest unpaid payout of every type, how long work has
// been due, and from time to time how many payouts are settled.
func (f *feeder) measure(ctx context.Context) {
	waiting, err := f.run.ledger.Waiting(ctx)
	if err != nil {
		return // the rounds meet the same error and tell it; measured_timestamp stands still
	}
	oldest, overdue, queued := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, w := range waiting {
		kind := string(w.Type)
		oldest[kind] = max(oldest[kind], w.OldestUnpaid.Seconds())
		overdue[kind] = max(overdue[kind], w.Overdue.Seconds())
		if w.Queued {
			queued[kind]++
		}
	}
	m := f.run.metrics
	for kind := range f.managers {
		m.oldest.WithLabelValues(kind).Set(oldest[kind])
		m.overdue.WithLabelValues(kind).Set(overdue[kind])
		m.waiting.WithLabelValues(kind).Set(queued[kind])
	}
	if time.Since(f.counted) >= totalsInterval {
		totals, err := f.run.ledger.Totals(ctx)
		if err != nil {
			return
		}
		for _, t := range totals {
			m.settled(t)
		}
		paused, err := f.run.ledger.Paused(ctx)
		if err != nil {
			return
		}
		m.pausedNow(paused)
		f.counted = time.Now()
	}
	m.measured.SetToCurrentTime()
}
