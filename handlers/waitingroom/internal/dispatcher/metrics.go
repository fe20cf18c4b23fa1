package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// tableAge is how long the figures of a tick that ran here are reported.
const tableAge = 10 * time.Second

// metrics count what the ticks of this process did. The gauges have the figures of those events
// whose last tick ran here: other instances report the others.
type metrics struct {
	d                                *Dispatcher
	labels                           *topevents.Labels
	promoted, aside, rewinds, holds  *prometheus.CounterVec
	undrawn                          *prometheus.CounterVec
	script                           prometheus.Histogram
	missed, rerouted                 prometheus.Counter
	queued                           prometheus.GaugeFunc
	entries                          *prometheus.GaugeVec
	waiting, leases, slotsFree, sold *prometheus.Desc
	excess                           *prometheus.Desc
	noCapacity, noReplicas, soldOut  *prometheus.Desc
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
		labels:   d.opts.Labels,
		promoted: counter("promoted_total", "Users that were promoted by ticks of this instance, by event (the 50 largest, else other)."),
		aside:    counter("aside_total", "Records of waiting users that could not be read or promoted and were set aside, by event."),
		rewinds:  counter("rewinds_total", "Recoveries after a failover or restart of the server, which may have lost writes, by event."),
		holds:    counter("holds_total", "Pauses of the promotion after ticks had stopped or the server had changed, by event."),
		undrawn:  counter("draw_failures_total", "Draws of a pre-queue that failed and are tried again, by event."),
		script: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name("promotion_script_duration_seconds"), Help: "Time of one call of the promotion script.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, 1, 2},
		}),
		missed:   prometheus.NewCounter(prometheus.CounterOpts{Name: name("ticks_missed_total"), Help: "Ticks that were skipped because an earlier one had not ended."}),
		rerouted: prometheus.NewCounter(prometheus.CounterOpts{Name: name("dispatch_rerouted_total"), Help: "Promotions of users whose connection had moved to another instance."}),
		queued: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name("promoter_queue"), Help: "Calls of ticks that wait for a worker."},
			func() float64 { return float64(len(d.queue)) }),
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: name("stream_entries"), Help: "Entries of the longest stream, by kind of stream (ENTRY, DISPATCH); acknowledged ones are removed.",
		}, []string{"stream"}),
		waiting:   gauge("waiting", "Waiting users, by event. Use max over the instances."),
		leases:    gauge("leases", "Leases in use, by event and state (READY, ADMITTED). Use max over the instances.", "state"),
		slotsFree: gauge("slots_free", "Free slots, by event. Use max over the instances."),
		sold:      gauge("sold", "Seats sold, by event. Use max over the instances."),
		excess:    gauge("excess", "Leases and sold seats above the capacity, by event. Use max over the instances."),
		noCapacity: prometheus.NewDesc(name("capacity_unknown"),
			"Rooms with waiting users whose number of seats is unknown, so that none is promoted.", nil, nil),
		soldOut: prometheus.NewDesc(name("sold_out"), "Rooms with waiting users whose seats are all sold.", nil, nil),
		noReplicas: prometheus.NewDesc(name("replicas_missing"),
			"Rooms whose last tick here too few replicas of Redis have. None of their users is promoted.", nil, nil),
	}
	for _, vec := range []*prometheus.CounterVec{m.promoted, m.aside, m.rewinds, m.holds, m.undrawn} {
		m.labels.Add(vec)
	}
	for _, stream := range []string{streamEntry, streamDispatch} {
		m.entries.WithLabelValues(stream)
	}
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m, m.promoted, m.aside, m.rewinds, m.holds, m.undrawn, m.script, m.missed, m.rerouted, m.queued, m.entries}
}

func (m *metrics) ticked(event string, t room.Tick) {
	label := m.labels.Name(event)
	m.promoted.WithLabelValues(label).Add(float64(t.Promoted))
	m.aside.WithLabelValues(label).Add(float64(t.Aside))
	for state, n := range t.Ended {
		m.labels.Ended(event, string(state), n)
	}
	if t.Rewound {
		m.rewinds.WithLabelValues(label).Inc()
	}
	if t.Gap > 0 || t.Rewound {
		m.holds.WithLabelValues(label).Inc()
	}
}

// drew counts what a draw has done.
func (m *metrics) drew(event string, drawn room.Drawn, failed bool) {
	label := m.labels.Name(event)
	m.aside.WithLabelValues(label).Add(float64(drawn.Aside))
	if failed {
		m.undrawn.WithLabelValues(label).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{m.waiting, m.leases, m.slotsFree, m.sold, m.excess, m.noCapacity, m.noReplicas, m.soldOut} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	type figures struct{ waiting, ready, admitted, free, sold, excess float64 }
	sums, unknown, late, soldOut := map[string]figures{}, 0, 0, 0
	m.d.mu.Lock()
	for name, e := range m.d.events {
		if e.table == nil || time.Since(e.at) > tableAge {
			continue
		}
		label := m.labels.Name(name)
		f := sums[label]
		f.waiting += float64(e.table.Waiting)
		f.ready += float64(e.table.Ready)
		f.admitted += float64(e.table.Admitted)
		f.free += float64(e.table.Free)
		f.sold += float64(e.table.Sold)
		if e.table.Capacity >= 0 {
			f.excess += max(0, float64(e.table.Sold+e.table.Ready+e.table.Admitted-e.table.Capacity))
		}
		sums[label] = f
		if e.table.Capacity < 0 && e.table.Waiting > 0 {
			unknown++
		}
		if e.table.Waiting > 0 && e.table.Halted() == room.SoldOut {
			soldOut++
		}
		if e.late {
			late++
		}
	}
	m.d.mu.Unlock()
	out <- prometheus.MustNewConstMetric(m.noCapacity, prometheus.GaugeValue, float64(unknown))
	out <- prometheus.MustNewConstMetric(m.soldOut, prometheus.GaugeValue, float64(soldOut))
	out <- prometheus.MustNewConstMetric(m.noReplicas, prometheus.GaugeValue, float64(late))
	for label, f := range sums {
		gauge := func(desc *prometheus.Desc, value float64, more ...string) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{label}, more...)...)
		}
		gauge(m.waiting, f.waiting)
		gauge(m.leases, f.ready, string(room.Ready))
		gauge(m.leases, f.admitted, string(room.Admitted))
		gauge(m.slotsFree, f.free)
		gauge(m.sold, f.sold)
		gauge(m.excess, f.excess)
	}
}
