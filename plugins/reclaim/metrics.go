package reclaim

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts for all targets.
type metrics struct {
	messages *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	claims   *prometheus.CounterVec
	failures *prometheus.CounterVec
	losses   *prometheus.CounterVec
	refused  *prometheus.CounterVec
	removed  *prometheus.CounterVec
}

// newMetrics returns metrics that are not registered yet.
func newMetrics() *metrics {
	labels := []string{"domain", "shard"}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_reclaim_" + name, Help: help}, append(labels[:2:2], more...))
	}
	return &metrics{
		messages: counter("messages_total", "Entries reclaimed here and acknowledged since."),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_reclaim_latency_seconds", Help: "Duration of one claim, a script.",
			Buckets: []float64{.0002, .0005, .001, .002, .005, .01, .025, .05, .1, .25, 1},
		}, labels),
		claims:   counter("claims_total", "Entries claimed, by reason: idle, dead.", "reason"),
		failures: counter("failures_total", "Streams that could not be served in a round."),
		losses:   counter("lost_total", "Pending entries found deleted from their stream."),
		refused:  counter("refused_total", "Claimed entries that the reader did not take because it stops."),
		removed:  counter("readers_removed_total", "Readers of dead instances removed."),
	}
}

// initialize creates the series of a domain's shard, so that they are 0 at the first scrape. A
// counter that appears at 1 is no increase to Prometheus.
func (m *metrics) initialize(domain, shard string) {
	m.latency.WithLabelValues(domain, shard)
	for _, c := range []*prometheus.CounterVec{m.messages, m.failures, m.losses, m.refused, m.removed} {
		c.WithLabelValues(domain, shard)
	}
	for _, reason := range []string{claimIdle, claimDead} {
		m.claims.WithLabelValues(domain, shard, reason)
	}
}

// Collectors returns the metrics for the registry.
func (m *metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.messages, m.latency, m.claims, m.failures, m.losses, m.refused, m.removed}
}

func (m *metrics) observe(domain, shard string, d time.Duration) {
	m.latency.WithLabelValues(domain, shard).Observe(d.Seconds())
}
