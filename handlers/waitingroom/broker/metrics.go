package broker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/waitingroom/labels"
)

// metrics count what this process did for users.
type metrics struct {
	labels           *labels.Labels
	joins            *prometheus.CounterVec
	broadcast, delay prometheus.Histogram
}

func newMetrics() *metrics {
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "millrace_room_" + name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		joins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_room_joins_total", Help: "Places of users by event (the 50 largest, else other) and kind: new, attached (it existed), restored (it was lost).",
		}, []string{"event", "kind"}),
		broadcast: histogram("broadcast_duration_seconds", "Time to read the rank tables and queue the positions of all connections.",
			.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5),
		delay: histogram("promotion_delay_duration_seconds", "Time from the promotion of a user to the event with the token.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120),
	}
	m.labels = labels.New(m.joins.MetricVec)
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.joins, m.broadcast, m.delay}
}

// joined counts a place that was given, found or restored.
func (m *metrics) joined(event, kind string) {
	if kind == "new" || kind == "attached" || kind == "restored" {
		m.joins.WithLabelValues(m.labels.Name(event), kind).Inc()
	}
}
