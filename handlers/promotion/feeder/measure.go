package feeder

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline/logs"
)

const (
	// MeasureInterval is the time between the starts of two measurements of the ledger. Each instance
	// measures, because each exports the gauges and has a readiness check.
	MeasureInterval = 5 * time.Second
	// measureTimeout bounds a measurement, so that a server that is silent ends it.
	measureTimeout = 2 * MeasureInterval
	// totalsInterval is the pause between two counts of the settled payouts. A count reads the
	// summaries of all promotions.
	totalsInterval = 15 * time.Second
	// tablesTimeout bounds the wait for the sizes of the tables.
	tablesTimeout = time.Second
)

// Measurement is what the ledger last reported. The zero value is that of an instance that has not
// measured yet.
type Measurement struct {
	At      time.Time         // when the ledger last answered; zero: never
	Waiting []ledger.WaitTime // as of At; the caller must not change it
	Err     error             // why the measurement after At failed; nil: none has

	// As of the last count of the settled payouts. The caller must not change them.
	Totals []ledger.Totals
	Paused []ledger.PausedPromotion
}

// Measured returns the last measurement. It is safe for concurrent use and never waits.
func (f *Feeder) Measured() Measurement {
	if m := f.last.Load(); m != nil {
		return *m
	}
	return Measurement{}
}

// measureAll measures and returns the pause until the next measurement.
func (f *Feeder) measureAll(ctx context.Context) time.Duration {
	began := time.Now()
	f.measuring.Lock()
	f.measure(ctx)
	f.measuring.Unlock()
	return max(0, MeasureInterval-time.Since(began))
}

// Remeasure implements operate.Remeasured. It counts the settled payouts, too, and measures nothing before the
// first measurement of the feeder itself.
func (f *Feeder) Remeasure(ctx context.Context) {
	if f.last.Load() == nil {
		return
	}
	f.measuring.Lock()
	defer f.measuring.Unlock()
	f.counted = time.Time{}
	f.measure(ctx)
}

// measure sets the gauges from the ledger, by a number of statements that does not depend on its
// contents. The settled and paused ones are set once per totalsInterval. The mutex is held.
func (f *Feeder) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	m := f.Measured()
	waiting, err := f.Ledger().WaitTimes(ctx)
	if err == nil {
		m.Waiting = waiting
		f.showWaiting(waiting)
		err = f.measureTotals(ctx, &m)
	}
	m.Err = err
	if err == nil {
		m.At = time.Now()
		f.Metrics.measured.SetToCurrentTime()
	}
	f.last.Store(&m)
}

func (f *Feeder) showWaiting(waiting []ledger.WaitTime) {
	oldest, overdue, places := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, w := range waiting {
		t := string(w.Type)
		oldest[t] = max(oldest[t], w.OldestUnpaid.Seconds())
		overdue[t] = max(overdue[t], w.Overdue.Seconds())
		if w.WaitsForPlace {
			places[t]++
		}
	}
	for t := range f.Streams {
		f.Metrics.oldest.WithLabelValues(t).Set(oldest[t])
		f.Metrics.overdue.WithLabelValues(t).Set(overdue[t])
		f.Metrics.waiting.WithLabelValues(t).Set(places[t])
	}
}

func (f *Feeder) measureTotals(ctx context.Context, m *Measurement) error {
	if time.Since(f.counted) < totalsInterval {
		return nil
	}
	if err := f.Ledger().CheckSequences(ctx); err != nil {
		return err
	}
	totals, err := f.Ledger().Totals(ctx)
	if err != nil {
		return err
	}
	for _, t := range totals {
		f.Metrics.settled(t)
	}
	paused, err := f.Ledger().Paused(ctx)
	if err != nil {
		return err
	}
	f.Metrics.pausedNow(paused)
	m.Totals, m.Paused = totals, paused
	f.counted = time.Now()
	f.measureTables(ctx)
	return nil
}

// measureTables measures how large the tables are. Nothing else depends on it, and a table that is being
// rewritten answers late, so an error is logged only.
func (f *Feeder) measureTables(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tablesTimeout)
	defer cancel()
	if err := f.Ledger().MeasureTables(ctx); err != nil {
		f.Log.DebugContext(ctx, "the tables of the ledger can't be measured", logs.Err(err))
	}
}

// Check returns nil when the last measurement succeeded and is at most three intervals old at now.
// Otherwise the error says since when the ledger has not been measured, and why.
func (m Measurement) Check(now time.Time) error {
	age := now.Sub(m.At)
	since := fmt.Sprintf("since %s, for %s", m.At.UTC().Format(time.RFC3339), age.Round(time.Second))
	if m.At.IsZero() {
		since = "since the start"
	}
	switch {
	case m.Err != nil:
		return fmt.Errorf("the ledger has not been measured %s: %w", since, m.Err)
	case m.At.IsZero() || age > 3*MeasureInterval:
		return fmt.Errorf("the ledger has not been measured %s: the measurement has not returned", since)
	}
	return nil
}
