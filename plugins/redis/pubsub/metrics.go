package pubsub

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what publishers do.
type Metrics struct{ published, batches prometheus.Counter }

// NewMetrics returns metrics that are not registered anywhere; see Collectors.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "redis", Name: name, Help: help})
	}
	return &Metrics{
		published: counter("published_total", "Entries published."),
		batches:   counter("publish_batches_total", "Pipelines that published entries; a single XADD counts as one."),
	}
}

// Collectors returns everything, for a registry.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.published, m.batches}
}
