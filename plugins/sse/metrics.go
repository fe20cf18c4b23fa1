package sse

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	connections, queued     *prometheus.GaugeVec
	opened, closed, refused *prometheus.CounterVec
	events, conflated       *prometheus.CounterVec
	writes                  *prometheus.HistogramVec
}

func newMetrics() metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "millrace", Subsystem: "sse", Name: name, Help: help}
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), append([]string{"hub"}, labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts(opts(name, help)), []string{"hub"})
	}
	return metrics{
		connections: gauge("connections", "Open streams."),
		queued:      gauge("queue_events", "Events in the queues of all clients, not yet written."),
		opened:      counter("opened_total", "Streams opened."),
		closed: counter("closed_total",
			"Streams ended, by reason: slow, gone, draining, unavailable, or that of the event closed.", "reason"),
		refused: counter("refused_total", "Requests answered with the event busy, by reason.", "reason"),
		events: counter("events_total",
			"Events written, from the backlog, the queue, and the latest values.", "lane"),
		conflated: counter("conflated_total", "Latest values that were replaced before they were written."),
		writes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "sse", Name: "write_duration_seconds",
			Help:    "Time of one write of all that was queued for a client.",
			Buckets: []float64{.00001, .00005, .0001, .0005, .001, .005, .025, .1, .5, 1, 5},
		}, []string{"hub"}),
	}
}

func (m metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.connections, m.queued, m.opened, m.closed, m.refused, m.events, m.conflated, m.writes}
}

// hubMetrics are the series of one hub.
type hubMetrics struct {
	connections, unread         prometheus.Gauge
	opened, conflated           prometheus.Counter
	fromBacklog, queued, latest prometheus.Counter
	closed, refused             *prometheus.CounterVec // by reason
	writes                      prometheus.Observer
}

func (m metrics) of(hub string) hubMetrics {
	label := prometheus.Labels{"hub": hub}
	h := hubMetrics{
		connections: m.connections.With(label), unread: m.queued.With(label),
		opened: m.opened.With(label), conflated: m.conflated.With(label),
		fromBacklog: m.events.WithLabelValues(hub, "backlog"),
		queued:      m.events.WithLabelValues(hub, "queue"),
		latest:      m.events.WithLabelValues(hub, "latest"),
		closed:      m.closed.MustCurryWith(label), refused: m.refused.MustCurryWith(label),
		writes: m.writes.With(label),
	}
	for _, reason := range []string{reasonSlow, reasonGone, reasonDraining, reasonUnavailable} {
		h.closed.WithLabelValues(reason)
	}
	h.refused.WithLabelValues(reasonDraining)
	return h
}
