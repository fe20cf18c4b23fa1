package feeder

import (
	"context"
	"time"
)

// totalsInterval is the pause between two counts of the settled payouts. A count reads one row per
// promotion, and each instance does it.
const totalsInterval = 15 * time.Second

// measure sets the gauges from the ledger. The settled and paused ones are set once per
// totalsInterval.
func (f *Feeder) measure(ctx context.Context) {
	waiting, err := f.Ledger().WaitTimes(ctx)
	if err != nil {
		return // round logs the same error; measured keeps its time
	}
	oldest, overdue, places := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, w := range waiting {
		t := string(w.Type)
		oldest[t] = max(oldest[t], w.OldestUnpaid.Seconds())
		overdue[t] = max(overdue[t], w.Overdue.Seconds())
		if w.WaitsForPlace {
			places[t]++
		}
	}
	m := f.Metrics
	for t := range f.Streams {
		m.oldest.WithLabelValues(t).Set(oldest[t])
		m.overdue.WithLabelValues(t).Set(overdue[t])
		m.waiting.WithLabelValues(t).Set(places[t])
	}
	if time.Since(f.counted) >= totalsInterval {
		totals, err := f.Ledger().Totals(ctx)
		if err != nil {
			return
		}
		for _, t := range totals {
			m.settled(t)
		}
		paused, err := f.Ledger().Paused(ctx)
		if err != nil {
			return
		}
		m.pausedNow(paused)
		f.counted = time.Now()
	}
	m.measured.SetToCurrentTime()
}
