package router

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
)

// Reasons why an event was skipped: a label of skipped.
const (
	reasonDuplicate      = "duplicate" // it changed no log; the feed has it again
	reasonConflict       = "conflict"  // the same, but it says something else than the log
	reasonExpired        = "expired"
	reasonAfterEnd       = "after_end"
	reasonStaleTransient = "stale_transient"
)

// Metrics count the events of all domains.
type Metrics struct {
	processed, skipped, published *prometheus.CounterVec
	stateUpdates, publishFailures *prometheus.CounterVec
}

// NewMetrics returns the metrics.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_router_" + name, Help: help}, append([]string{"domain"}, labels...))
	}
	return &Metrics{
		processed:       counter("processed_total", "Events that were handled and acknowledged, by domain and shard, the skipped ones included.", "shard"),
		skipped:         counter("skipped_total", "Events that changed no log, by domain, shard and reason (duplicate, conflict, expired, after_end, stale_transient). The feed has the duplicates. A conflict and after_end are events that nobody sees.", "shard", "reason"),
		stateUpdates:    counter("state_updates_total", "Writes of the state of a job, by domain."),
		published:       counter("published_total", "Events that were added to a feed, by domain and shard.", "shard"),
		publishFailures: counter("publish_failures_total", "Batches of events that could not be added to a feed, by domain. They are delivered again."),
	}
}

// Domain creates the series of a domain.
func (m *Metrics) Domain(name string, shards int) {
	m.stateUpdates.WithLabelValues(name)
	m.publishFailures.WithLabelValues(name)
	for i := range shards {
		shard := strconv.Itoa(i)
		m.processed.WithLabelValues(name, shard)
		m.published.WithLabelValues(name, shard)
		for _, reason := range []string{reasonDuplicate, reasonConflict, reasonExpired, reasonAfterEnd, reasonStaleTransient} {
			m.skipped.WithLabelValues(name, shard, reason)
		}
	}
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.processed, m.skipped, m.stateUpdates, m.published, m.publishFailures}
}

// reasonOf returns the reason to skip an event, or "".
func reasonOf(o joblog.Outcome) string {
	return [...]string{joblog.Added: "", joblog.Duplicate: reasonDuplicate, joblog.AfterEnd: reasonAfterEnd, joblog.Expired: reasonExpired, joblog.Conflict: reasonConflict}[o]
}
