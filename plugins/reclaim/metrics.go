package reclaim

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts for all targets. It is one prometheus.Collector.
type Metrics struct {
	messages *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	claims   *prometheus.CounterVec
	failures *prometheus.CounterVec
	losses   *prometheus.CounterVec
	refused  *prometheus.CounterVec
	removed  *prometheus.CounterVec
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	labels := []string{"domain", "shard"}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_reclaim_" + name, Help: help}, append(labels[:2:2], more...))
	}
	return &Metrics{
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
func (m *Metrics) initialize(domain, shard string) {
	m.latency.WithLabelValues(domain, shard)
	for _, c := range []*prometheus.CounterVec{m.messages, m.failures, m.losses, m.refused, m.removed} {
		c.WithLabelValues(domain, shard)
	}
	for _, reason := range []string{claimIdle, claimDead} {
		m.claims.WithLabelValues(domain, shard, reason)
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.messages, m.latency, m.claims, m.failures, m.losses, m.refused, m.removed}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

func (m *Metrics) observe(domain, shard string, d time.Duration) {
	m.latency.WithLabelValues(domain, shard).Observe(d.Seconds())
}

var _ prometheus.Collector = (*Metrics)(nil)
