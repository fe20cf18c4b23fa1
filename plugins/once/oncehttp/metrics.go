package oncehttp

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/plugins/once"
)

// The operations of calls that have no kind.
const (
	operationSend   = "send"
	operationLookup = "lookup"
)

type metrics struct {
	calls         *prometheus.CounterVec
	latency       *prometheus.HistogramVec
	misconfigured *prometheus.CounterVec
	replays       prometheus.Counter
	gauges        []prometheus.Collector

	operations sync.Map // name → *operationMetrics
}

func newMetrics(c *Client) *metrics {
	client := prometheus.Labels{"client": c.mapping.Name}
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_http_calls_total", ConstLabels: client,
			Help: "Calls to an API by operation (the kind of the effect, or lookup) and class of the answer, those that were never sent included.",
		}, []string{"operation", "class"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_once_http_call_duration_seconds", ConstLabels: client,
			Help:    "Time from the start of a call to the last byte of the answer, of calls that were sent.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"operation"}),
		misconfigured: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_http_misconfigured_total", ConstLabels: client,
			Help: "Answers about our credential, permission or address, by HTTP status. One effect can cause a few; the gauge millrace_once_http_misconfigured is the alarm.",
		}, []string{"status"}),
		replays: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_once_http_replays_total", ConstLabels: client,
			Help: "Requests that the HTTP transport sent again by itself because a reused connection was dead.",
		}),
	}
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
		m.misconfigured.WithLabelValues(strconv.Itoa(status)) // at 0 before the first one
	}
	gauge := func(name, help string, value func(*connection) float64) {
		m.gauges = append(m.gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: client}, func() float64 {
			n := c.opened.Load()
			if n == nil {
				return 0
			}
			return value(n)
		}))
	}
	gauge("millrace_once_http_in_flight", "Slots that are taken now, each by one call.",
		func(n *connection) float64 { return float64(n.slots.Taken()) })
	gauge("millrace_once_http_in_flight_limit", "Number of slots.",
		func(n *connection) float64 { return float64(n.cfg.Concurrency) })
	gauge("millrace_once_http_breaker_state", "0 closed, 1 half-open, 2 open.",
		func(n *connection) float64 { return float64(n.breaker.current()) })
	gauge("millrace_once_http_throttled_seconds", "How long a Retry-After that several effects were given still holds all calls back; 0 when none does.",
		func(n *connection) float64 { return n.throttle.remaining().Seconds() })
	gauge("millrace_once_http_pace", "Calls per second that may begin after the far side throttled all of them: it falls while more than a twentieth are refused, and grows otherwise. 0 when any number may.",
		func(n *connection) float64 { return n.pace.reading() })
	gauge("millrace_once_http_misconfigured", "1 after a 401, or after several effects in a row were refused for our permission or address, until the next good answer.",
		func(n *connection) float64 {
			if n.misconfigured.Load() {
				return 1
			}
			return 0
		})
	return m
}

type operationMetrics struct {
	calls   []prometheus.Counter // by class
	latency prometheus.Observer
}

func (m *metrics) operation(name string) *operationMetrics {
	if known, ok := m.operations.Load(name); ok {
		return known.(*operationMetrics)
	}
	o := &operationMetrics{latency: m.latency.WithLabelValues(name)}
	for _, class := range once.Classes() {
		o.calls = append(o.calls, m.calls.WithLabelValues(name, class.String()))
	}
	made, _ := m.operations.LoadOrStore(name, o)
	return made.(*operationMetrics)
}

func (o *operationMetrics) observe(class once.Class, sent bool, took time.Duration) {
	o.calls[class].Inc()
	if sent {
		o.latency.Observe(took.Seconds())
	}
}

// Collectors returns the client's metrics, millrace_once_http_…, for Registry.Collect. They exist before Open.
func (c *Client) Collectors() []prometheus.Collector {
	return append([]prometheus.Collector{c.metrics.calls, c.metrics.latency, c.metrics.misconfigured, c.metrics.replays},
		c.metrics.gauges...)
}
