package streams

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
)

// Metrics counts for the Managers of all kinds.
type Metrics struct {
	running       *prometheus.GaugeVec
	slotCount     *prometheus.GaugeVec
	entries       *prometheus.GaugeVec
	starts        *prometheus.CounterVec
	stops         *prometheus.CounterVec
	enqueue       *prometheus.CounterVec
	batch         *prometheus.HistogramVec
	revivals      *prometheus.CounterVec
	losses        *prometheus.CounterVec
	cleanups      *prometheus.CounterVec
	reactivations *prometheus.CounterVec
	trims         *prometheus.CounterVec
	orphaned      *prometheus.CounterVec
	failures      *prometheus.CounterVec
	refusals      *prometheus.CounterVec
	delaying      *prometheus.GaugeVec
	foreigns      *prometheus.GaugeVec
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_streams_" + name, Help: help}, append([]string{"type"}, labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_streams_" + name, Help: help}, []string{"type"})
	}
	return &Metrics{
		running:   gauge("running", "Streams that have a reader in this instance."),
		slotCount: gauge("concurrency", "Slots of all running streams in this instance."),
		entries:   gauge("entries", "Entries of the running streams at their last visits by this instance: unread, pending, or not trimmed yet."),
		starts:    counter("starts_total", "Readers started."),
		stops:     counter("stops_total", "Readers stopped, by reason.", "reason"),
		enqueue:   counter("enqueued_total", "Entries that were to be added, by outcome: added, full, failed.", "outcome"),
		batch: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_streams_enqueue_batch_entries", Help: "Entries added by one enqueue call.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 400},
		}, []string{"type"}),
		revivals:      counter("revived_total", "Streams created again by an enqueue that found them absent."),
		losses:        counter("lost_total", "Streams that were gone although active, and created again by their reader."),
		cleanups:      counter("cleanups_total", "Clean-ups of idle streams, by outcome: deleted, not_drained, absent, failed.", "outcome"),
		reactivations: counter("reactivated_total", "Streams added to the active set again because they were not drained."),
		trims:         counter("trimmed_total", "Acknowledged entries removed."),
		orphaned:      counter("orphans_total", "Streams without activation found by a sweep."),
		delaying: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_streams_delayed_by_group",
			Help: "Streams read here whose trimming and deletion a foreign consumer group has delayed for 10 s or longer, by group.",
		}, []string{"type", "group"}),
		foreigns: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_streams_foreign",
			Help: "Streams that belong to another deployment. active=true: they should be read here. active=false: the last sweep found them.",
		}, []string{"type", "active"}),
		refusals: counter("refused_total", "Commands refused because the key of one stream, or of its companion, can't be used."),
		failures: counter("failures_total", "Steps that failed and are retried: active, start, visit, wake.", "what"),
	}
}

// SharedMetrics returns the metrics of the Managers of all plugins, which the first call registers. Prometheus takes
// them once, so plugins that have a Manager share them. It is for Register of a plugin.
func SharedMetrics(r *pipeline.Registry) *Metrics {
	if shared := pipeline.Offers[*Metrics](r); len(shared) > 0 {
		return shared[0]
	}
	m := NewMetrics()
	r.Offer(m)
	r.Collect(m.Collectors()...)
	return m
}

// initialize creates the series of a kind, so that they are 0 at the first scrape. A counter that
// appears at 1 is no increase to Prometheus.
func (m *Metrics) initialize(kind string) {
	m.running.WithLabelValues(kind)
	m.slotCount.WithLabelValues(kind)
	m.entries.WithLabelValues(kind)
	m.batch.WithLabelValues(kind)
	m.foreign(kind, true, 0)
	m.foreign(kind, false, 0)
	for _, c := range []*prometheus.CounterVec{m.starts, m.revivals, m.losses, m.reactivations, m.trims, m.orphaned, m.refusals} {
		c.WithLabelValues(kind)
	}
	for vec, values := range map[*prometheus.CounterVec][]string{
		m.enqueue:  {"added", "full", "failed"},
		m.cleanups: {"deleted", "not_drained", "absent", "failed"},
		m.failures: {"active", "start", "visit", "wake"},
	} {
		for _, value := range values {
			vec.WithLabelValues(kind, value)
		}
	}
}

// Collectors returns the metrics for the registry.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.running, m.slotCount, m.entries, m.starts, m.stops, m.enqueue, m.batch, m.revivals,
		m.losses, m.cleanups, m.reactivations, m.trims, m.orphaned, m.failures, m.refusals, m.delaying, m.foreigns}
}

func (m *Metrics) started(kind string, slots int) {
	m.running.WithLabelValues(kind).Inc()
	m.slotCount.WithLabelValues(kind).Add(float64(slots))
	m.starts.WithLabelValues(kind).Inc()
}

func (m *Metrics) stopped(kind, why string, slots int) {
	m.running.WithLabelValues(kind).Dec()
	m.slotCount.WithLabelValues(kind).Sub(float64(slots))
	m.stops.WithLabelValues(kind, why).Inc()
}

func (m *Metrics) measured(kind string, entries int64) {
	m.entries.WithLabelValues(kind).Set(float64(entries))
}

func (m *Metrics) resized(kind string, by int) {
	m.slotCount.WithLabelValues(kind).Add(float64(by))
}

func (m *Metrics) enqueued(kind string, added, refused int) {
	if added > 0 {
		m.enqueue.WithLabelValues(kind, "added").Add(float64(added))
		m.batch.WithLabelValues(kind).Observe(float64(added))
	}
	if refused > 0 {
		m.enqueue.WithLabelValues(kind, "full").Add(float64(refused))
	}
}

func (m *Metrics) enqueueFailed(kind string, n int) {
	m.enqueue.WithLabelValues(kind, "failed").Add(float64(n))
}
func (m *Metrics) revived(kind string)          { m.revivals.WithLabelValues(kind).Inc() }
func (m *Metrics) lost(kind string)             { m.losses.WithLabelValues(kind).Inc() }
func (m *Metrics) cleanup(kind, outcome string) { m.cleanups.WithLabelValues(kind, outcome).Inc() }
func (m *Metrics) reactivated(kind string)      { m.reactivations.WithLabelValues(kind).Inc() }
func (m *Metrics) trimmed(kind string, n int64) { m.trims.WithLabelValues(kind).Add(float64(n)) }
func (m *Metrics) orphan(kind string)           { m.orphaned.WithLabelValues(kind).Inc() }
func (m *Metrics) refused(kind string)          { m.refusals.WithLabelValues(kind).Inc() }
func (m *Metrics) foreign(kind string, active bool, n int) {
	m.foreigns.WithLabelValues(kind, strconv.FormatBool(active)).Set(float64(n))
}
func (m *Metrics) failed(kind, what string) { m.failures.WithLabelValues(kind, what).Inc() }
