package poll

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what readers do. No metric is labelled with a stream: there may be a million of
// them.
type Metrics struct {
	reads, emptyReads, readErrors prometheus.Counter
	entries, adopted, malformed   prometheus.Counter
	acks, ackFlushes              prometheus.Counter
	redeliveries, leftPending     prometheus.Counter
	heartbeats, lost, released    prometheus.Counter
	deletedPending, reclaimed     prometheus.Counter
	inFlight, readers             prometheus.Gauge
}

// NewMetrics returns metrics that are not registered anywhere; see Collectors.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "redis", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "redis", Name: name, Help: help})
	}
	return &Metrics{
		reads:          counter("reads_total", "XREADGROUP commands sent."),
		emptyReads:     counter("empty_reads_total", "XREADGROUP commands that returned no entry."),
		readErrors:     counter("read_errors_total", "XREADGROUP commands that failed."),
		entries:        counter("entries_total", "Entries that readers have taken in: new ones, own pending ones, and claimed ones."),
		adopted:        counter("adopted_total", "Entries taken in that were claimed from other consumers."),
		malformed:      counter("malformed_entries_total", "Entries without the field message."),
		acks:           counter("acks_total", "Entries acknowledged."),
		ackFlushes:     counter("ack_flushes_total", "Commands that acknowledged entries."),
		redeliveries:   counter("redeliveries_total", "Nacked entries delivered again by the same reader."),
		leftPending:    counter("left_pending_total", "Entries left pending after too many nacks."),
		heartbeats:     counter("heartbeats_total", "Entries kept alive because they were in flight for long."),
		lost:           counter("lost_total", "Entries that another consumer claimed while they were in flight here."),
		released:       counter("released_total", "Entries released before a handler was started for them."),
		deletedPending: counter("deleted_pending_total", "Pending entries that were deleted from their stream: evidence of loss."),
		reclaimed:      counter("reclaimed_total", "Idle entries of other consumers claimed by sources."),
		inFlight:       gauge("in_flight", "Entries that workers have taken."),
		readers:        gauge("readers", "Readers running."),
	}
}

// Collectors returns everything, for a registry.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.reads, m.emptyReads, m.readErrors, m.entries, m.adopted, m.malformed, m.acks, m.ackFlushes,
		m.redeliveries, m.leftPending, m.heartbeats, m.lost, m.released, m.deletedPending, m.reclaimed,
		m.inFlight, m.readers,
	}
}
