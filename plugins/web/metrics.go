package web

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	streams  prometheus.Gauge
	refused  *prometheus.CounterVec
	panics   prometheus.Counter
}

// Reasons of refusals.
const (
	reasonOrigin      = "foreign_origin"
	reasonDraining    = "draining"
	reasonFull        = "full"
	reasonTooMany     = "too_many"
	reasonNoUser      = "no_user"
	reasonBadUser     = "bad_user"
	reasonUnavailable = "sign_in_unavailable"
)

// noPattern is the label of requests that no pattern matches.
const noPattern = "none"

func newMetrics() metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_web_requests_total", Help: "Requests answered, by pattern and class of the status.",
		}, []string{"pattern", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_web_request_duration_seconds", Help: "Duration of a request that is no stream.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"pattern"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_web_open_streams", Help: "Streams that are open.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_web_refused_total",
			Help: "Requests refused before their handler, by reason: foreign_origin, draining, full, too_many, no_user, bad_user, sign_in_unavailable.",
		}, []string{"reason"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_web_panics_total", Help: "Requests whose handler panicked.",
		}),
	}
	for _, reason := range []string{reasonOrigin, reasonDraining, reasonFull, reasonTooMany, reasonNoUser, reasonBadUser, reasonUnavailable} {
		m.refused.WithLabelValues(reason)
	}
	m.initialize(noPattern)
	return m
}

// initialize creates the series of a pattern, so that they are 0 at the first scrape.
func (m metrics) initialize(pattern string) {
	for status := 2; status <= 5; status++ {
		m.requests.WithLabelValues(pattern, class(status*100))
	}
}

func class(status int) string { return strconv.Itoa(status/100) + "xx" }

func (m metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.duration, m.streams, m.refused, m.panics}
}
