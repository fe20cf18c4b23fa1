package gateway

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	gaps, late, dropped, reads *prometheus.CounterVec
	delay                      *prometheus.HistogramVec
}

func newMetrics(domains []*domain) metrics {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "router", Name: name, Help: help}, []string{label})
	}
	m := metrics{
		gaps:    counter("gaps_total", "Ranges of missing numbers that were reported to the live watchers of a job.", "domain"),
		late:    counter("late_total", "Events that arrived after their number was reported as missing. They are not sent.", "domain"),
		dropped: counter("transient_dropped_total", "Transient events that were not sent, because too many waited for a missing number or for clients.", "domain"),
		reads:   counter("log_reads_total", "Reads of the log of a job by the gateway, by reason: connect, hole, lost.", "reason"),
		delay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "router", Name: "delay_duration_seconds",
			Help: "Time from the id of the stream entry until the event was queued for the live watchers. " +
				"The id has the clock of Redis, the end that of the gateway. Ids that are a day away are no time, and left out.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"domain"}),
	}
	for _, d := range domains {
		m.gaps.WithLabelValues(d.name)
		m.late.WithLabelValues(d.name)
		m.dropped.WithLabelValues(d.name)
		m.delay.WithLabelValues(d.name)
	}
	for _, reason := range []string{readConnect, readHole, readLost} {
		m.reads.WithLabelValues(reason)
	}
	return m
}

func (m metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.gaps, m.late, m.dropped, m.reads, m.delay}
}
