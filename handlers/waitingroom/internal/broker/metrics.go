package broker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
)

// metrics count what this process did for users.
type metrics struct {
	b                *Broker
	labels           *topevents.Labels
	joins            *prometheus.CounterVec
	unsigned         prometheus.Counter
	broadcast, delay prometheus.Histogram
	age              *prometheus.Desc
}

func newMetrics(b *Broker) *metrics {
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "millrace_room_" + name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		b: b, labels: b.opts.Labels,
		joins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_room_joins_total", Help: "Places of users by event (the 50 largest, else other) and kind: new, attached (it existed), restored (it was lost).",
		}, []string{"event", "kind"}),
		unsigned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_room_sign_failures_total", Help: "Calls with signs of life that failed; each is repeated.",
		}),
		broadcast: histogram("broadcast_duration_seconds", "Time to read the rank tables of a node of Redis, and to queue the positions of their users.",
			.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5),
		delay: histogram("promotion_delay_duration_seconds", "Time from the promotion of a user to the event with the token.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120),
		age: prometheus.NewDesc("millrace_room_tick_age_seconds",
			"Time since this broker saw the last tick of an event with connected users, by event. Use max over the instances.", []string{"event"}, nil),
	}
	m.labels.Add(m.joins, "new", "attached", "restored")
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m, m.joins, m.unsigned, m.broadcast, m.delay}
}

// joined counts a place that was given, found or restored.
func (m *metrics) joined(event, kind string) {
	if kind == "new" || kind == "attached" || kind == "restored" {
		m.joins.WithLabelValues(m.labels.Name(event), kind).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) { out <- m.age }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	now, oldest := time.Now(), map[string]float64{}
	for _, l := range m.b.locals() {
		if ticked, ok := l.lastTick(); ok {
			label := m.labels.Name(l.event)
			oldest[label] = max(oldest[label], now.Sub(ticked).Seconds())
		}
	}
	for label, age := range oldest {
		out <- prometheus.MustNewConstMetric(m.age, prometheus.GaugeValue, age, label)
	}
}
