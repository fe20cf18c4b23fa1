package deadletter

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

const (
	// countInterval is the time between two counts of the waiting dead letters and measurements of their tables, countTimeout the
	// limit of one.
	countInterval = 15 * time.Second
	countTimeout  = 10 * time.Second
	// maxClasses bounds the classes of the metric; the others are counted as otherClass.
	maxClasses = 20
	otherClass = "other"
	// noClass is the class of the series that are 0. Prometheus drops an empty label.
	noClass = "none"
)

type metrics struct {
	published   *prometheus.CounterVec
	unpublished *prometheus.CounterVec
	failures    *prometheus.CounterVec
	failing     *prometheus.GaugeVec
	stored      *prometheus.GaugeVec
	database    *portable.Metrics
}

func newMetrics() *metrics {
	return &metrics{
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_deadletter_published_total",
			Help: "Dead letters that are durable in their topic.",
		}, []string{"topic"}),
		unpublished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_deadletter_unpublished_total",
			Help: "Dead letters that their topic refused in the smallest form too; only the store has them.",
		}, []string{"topic"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_deadletter_relay_failures_total",
			Help: "Batches of a relay that failed completely or in part.",
		}, []string{"outbox"}),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_deadletter_relay_failing",
			Help: "1 while the last batch of a relay failed.",
		}, []string{"outbox"}),
		stored: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_deadletter_stored",
			Help: "Dead letters in the store that wait for a person. All instances export the same value; aggregate with max().",
		}, []string{"class", "state"}),
		database: portable.NewMetrics("millrace_deadletter", "the dead letters"),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.published, m.unpublished, m.failures, m.failing, m.stored, m.database}
}

// setStored sets the metric of waiting dead letters. The tallies begin with the largest.
func (m *metrics) setStored(tallies []store.Tally) {
	type labels struct{ class, state string }
	sums, classes := map[labels]float64{}, map[string]bool{}
	for _, t := range tallies {
		if !classes[t.Class] && len(classes) == maxClasses {
			t.Class = otherClass
		} else {
			classes[t.Class] = true
		}
		sums[labels{t.Class, string(t.State)}] += float64(t.Count)
	}
	m.stored.Reset()
	for _, state := range store.Waiting() {
		m.stored.WithLabelValues(noClass, string(state)) // a value of 0 differs from no value
	}
	for l, n := range sums {
		m.stored.WithLabelValues(l.class, l.state).Set(n)
	}
}

// countStored updates the metric of waiting dead letters until ctx ends.
func (p *Plugin) countStored(ctx context.Context, s *store.Store) {
	failing := false
	loop.Repeat(ctx, 0, func(ctx context.Context) time.Duration {
		bounded, cancel := context.WithTimeout(ctx, countTimeout)
		tallies, err := s.Tallies(bounded)
		if err == nil {
			p.metrics.setStored(tallies)
			err = s.Measure(bounded, p.metrics.database)
		}
		cancel()
		if err != nil && ctx.Err() == nil && !failing {
			p.log.WarnContext(ctx, "waiting dead letters can't be counted, or their tables not measured", slog.String(logs.Component, "store"), logs.Err(err))
		}
		failing = err != nil
		return countInterval
	})
}
