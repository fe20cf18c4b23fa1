package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/waitingroom/labels"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// tableAge is how long the figures of a tick that ran here are reported.
const tableAge = 10 * time.Second

// metrics count what the ticks of this process did. The gauges have the figures of those events
// whose last tick ran here: other instances report the others.
type metrics struct {
	d                                *Dispatcher
	labels                           *labels.Labels
	promoted, ended, aside, rewinds  *prometheus.CounterVec
	script                           prometheus.Histogram
	missed, rerouted                 prometheus.Counter
	queued                           prometheus.GaugeFunc
	waiting, leases, slotsFree, sold *prometheus.Desc
}

func newMetrics(d *Dispatcher) *metrics {
	name := func(s string) string { return "millrace_room_" + s }
	counter := func(s, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name(s), Help: help}, append([]string{"event"}, more...))
	}
	gauge := func(s, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name(s), help, append([]string{"event"}, more...), nil)
	}
	m := &metrics{
		d:        d,
		promoted: counter("promoted_total", "Users that were promoted by ticks of this instance, by event (the 50 largest, else other)."),
		ended:    counter("ended_total", "Leases that a tick of this instance has ended, by event and state (EXPIRED, ABANDONED).", "state"),
		aside:    counter("aside_total", "Records of waiting users that could not be promoted and were set aside, by event."),
		rewinds:  counter("rewinds_total", "Recoveries after a failover or restart of the server, which may have lost writes, by event."),
		script: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name("promotion_script_duration_seconds"), Help: "Time of one call of the promotion script.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, 1, 2},
		}),
		missed:   prometheus.NewCounter(prometheus.CounterOpts{Name: name("ticks_missed_total"), Help: "Ticks that were skipped because an earlier one had not ended."}),
		rerouted: prometheus.NewCounter(prometheus.CounterOpts{Name: name("dispatch_rerouted_total"), Help: "Promotions of users whose connection had moved to another instance."}),
		queued: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name("promoter_queue"), Help: "Ticks that wait for a worker."},
			func() float64 { return float64(len(d.queue)) }),
		waiting:   gauge("waiting", "Waiting users, by event. Use max over the instances."),
		leases:    gauge("leases", "Leases in use, by event and state (READY, ADMITTED). Use max over the instances.", "state"),
		slotsFree: gauge("slots_free", "Free slots, by event. Use max over the instances."),
		sold:      gauge("sold", "Seats sold, by event. Use max over the instances."),
	}
	m.labels = labels.New(m.promoted.MetricVec, m.ended.MetricVec, m.aside.MetricVec, m.rewinds.MetricVec)
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m, m.promoted, m.ended, m.aside, m.rewinds, m.script, m.missed, m.rerouted, m.queued}
}

// choose gives the largest events labels of their own.
func (m *metrics) choose(sizes map[string]int64) {
	m.labels.Choose(sizes)
	for event := range sizes {
		label := m.labels.Name(event)
		m.promoted.WithLabelValues(label)
		m.aside.WithLabelValues(label)
		m.rewinds.WithLabelValues(label)
		for _, state := range []room.State{room.Expired, room.Abandoned} {
			m.ended.WithLabelValues(label, string(state))
		}
	}
}

func (m *metrics) ticked(event string, t room.Tick) {
	label := m.labels.Name(event)
	m.promoted.WithLabelValues(label).Add(float64(t.Promoted))
	m.aside.WithLabelValues(label).Add(float64(t.Aside))
	for state, n := range t.Ended {
		m.ended.WithLabelValues(label, string(state)).Add(float64(n))
	}
	if t.Rewound {
		m.rewinds.WithLabelValues(label).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{m.waiting, m.leases, m.slotsFree, m.sold} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	type figures struct{ waiting, ready, admitted, free, sold float64 }
	sums := map[string]figures{}
	m.d.mu.Lock()
	for name, e := range m.d.events {
		if e.table == nil || time.Since(e.at) > tableAge {
			continue
		}
		f := sums[m.labels.Name(name)]
		f.waiting += float64(e.table.Waiting)
		f.ready += float64(e.table.Ready)
		f.admitted += float64(e.table.Admitted)
		f.free += float64(e.table.Free)
		f.sold += float64(e.table.Sold)
		sums[m.labels.Name(name)] = f
	}
	m.d.mu.Unlock()
	for label, f := range sums {
		gauge := func(desc *prometheus.Desc, value float64, more ...string) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{label}, more...)...)
		}
		gauge(m.waiting, f.waiting)
		gauge(m.leases, f.ready, string(room.Ready))
		gauge(m.leases, f.admitted, string(room.Admitted))
		gauge(m.slotsFree, f.free)
		gauge(m.sold, f.sold)
	}
}
