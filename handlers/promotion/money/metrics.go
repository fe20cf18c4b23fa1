package money

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	calls         *prometheus.CounterVec
	latency       *prometheus.HistogramVec
	misconfigured *prometheus.CounterVec
	replays       prometheus.Counter
	gauges        []prometheus.Collector
}

func newMetrics(c *Client) *metrics {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_money_calls_total",
			Help: "Calls to the Money API by operation and class of the answer, those that were never sent included.",
		}, []string{"operation", "class"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "millrace_money_call_duration_seconds",
			Help:    "Time from the start of a call to the last byte of the answer, of calls that were sent.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"operation"}),
		misconfigured: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_money_misconfigured_total",
			Help: "Answers about our credential, permission or address, by HTTP status. One payout can cause a few; the gauge millrace_money_misconfigured is the alarm.",
		}, []string{"status"}),
		replays: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_money_replays_total",
			Help: "Requests that the HTTP transport sent again by itself because a reused connection was dead.",
		}),
	}
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
		m.misconfigured.WithLabelValues(strconv.Itoa(status)) // at 0 before the first one
	}
	gauge := func(name, help string, value func() float64) {
		m.gauges = append(m.gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	gauge("millrace_money_in_flight", "Slots that are taken now, each by one call.",
		func() float64 { return float64(c.slots.Taken()) })
	gauge("millrace_money_in_flight_limit", "Number of slots.",
		func() float64 { return float64(c.cfg.Concurrency) })
	gauge("millrace_money_breaker_state", "0 closed, 1 half-open, 2 open.", func() float64 {
		return float64(c.breaker.current())
	})
	gauge("millrace_money_throttled_seconds", "How long a Retry-After that several payouts were given still holds all calls back; 0 when none does.",
		func() float64 { return c.throttle.remaining().Seconds() })
	gauge("millrace_money_misconfigured", "1 after a 401, or after several payouts in a row were refused for our permission or address, until the next good answer.",
		func() float64 {
			if c.misconfigured.Load() {
				return 1
			}
			return 0
		})
	return m
}

type operationMetrics struct {
	calls   [classes]prometheus.Counter
	latency prometheus.Observer
}

func (m *metrics) operation(name string) operationMetrics {
	o := operationMetrics{latency: m.latency.WithLabelValues(name)}
	for class := range classes {
		o.calls[class] = m.calls.WithLabelValues(name, class.String())
	}
	return o
}

func (o *operationMetrics) observe(class Class, sent bool, took time.Duration) {
	o.calls[class].Inc()
	if sent {
		o.latency.Observe(took.Seconds())
	}
}

// Collectors returns the client's metrics, millrace_money_…, for Registry.Collect.
func (c *Client) Collectors() []prometheus.Collector {
	return append([]prometheus.Collector{c.metrics.calls, c.metrics.latency, c.metrics.misconfigured, c.metrics.replays},
		c.metrics.gauges...)
}
