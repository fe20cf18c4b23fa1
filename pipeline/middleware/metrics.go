package middleware

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"
)

// Outcomes of a message, the values of the label outcome.
const (
	outcomeAcked   = "acked"
	outcomeRetried = "retried"
	outcomeDead    = "dead"
	outcomeDropped = "dropped" // permanent, and the route says pipeline.Drop
	outcomeNacked  = "nacked"
)

type metrics struct {
	messages *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	last     *prometheus.GaugeVec
	stuck    *prometheus.GaugeVec

	batchSeconds *prometheus.HistogramVec
	batchRecords *prometheus.HistogramVec
}

func newMetrics() *metrics {
	durations := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	return &metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_messages_total",
			Help: "Messages handled, by route, outcome and error class (empty when acked).",
		}, []string{"route", "outcome", "class"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "millrace_message_duration_seconds",
			Help:    "Time from receiving a message to its ack or nack, by route.",
			Buckets: durations,
		}, []string{"route"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_messages_in_flight",
			Help: "Messages between receiving and ack or nack, by route.",
		}, []string{"route"}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_last_message_timestamp_seconds",
			Help: "Unix time at which the last message was received, by route.",
		}, []string{"route"}),
		stuck: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_handlers_stuck",
			Help: "Handlers running for longer than the route's longest hold, by route.",
		}, []string{"route"}),
		batchSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "millrace_batch_duration_seconds",
			Help:    "Duration of a call for a batch, by route.",
			Buckets: durations,
		}, []string{"route"}),
		batchRecords: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "millrace_batch_records",
			Help:    "Messages per batch, by route.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}, []string{"route"}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.messages, m.seconds, m.inFlight, m.last, m.stuck, m.batchSeconds, m.batchRecords}
}

// acked returns the value of the counter of a route.
func (m *metrics) acked(route string) uint64 {
	var value dto.Metric
	if err := m.messages.WithLabelValues(route, outcomeAcked, "").Write(&value); err != nil {
		return 0 // a counter can always be written
	}
	return uint64(value.GetCounter().GetValue())
}

// held returns the value of the gauge of a route.
func (m *metrics) held(route string) int64 {
	var value dto.Metric
	if err := m.inFlight.WithLabelValues(route).Write(&value); err != nil {
		return 0 // a gauge can always be written
	}
	return int64(value.GetGauge().GetValue())
}

// routeMetrics are the series of one route.
type routeMetrics struct {
	acked                      prometheus.Counter
	seconds                    prometheus.Observer
	inFlight, last, stuck      prometheus.Gauge
	batchSeconds, batchRecords prometheus.Observer // nil without batches
}

func (m *metrics) of(route string) routeMetrics {
	// In the first scrape with 0: the first dropped message is then an increase.
	m.messages.WithLabelValues(route, outcomeDropped, "")
	return routeMetrics{
		acked:   m.messages.WithLabelValues(route, outcomeAcked, ""),
		seconds: m.seconds.WithLabelValues(route), inFlight: m.inFlight.WithLabelValues(route), last: m.last.WithLabelValues(route),
		stuck: m.stuck.WithLabelValues(route),
	}
}

func (m *routeMetrics) batched(all *metrics, route string) {
	m.batchSeconds, m.batchRecords = all.batchSeconds.WithLabelValues(route), all.batchRecords.WithLabelValues(route)
}

func (m *routeMetrics) received() {
	m.last.Set(float64(time.Now().UnixMilli()) / 1000)
	m.inFlight.Inc()
}

func (m *routeMetrics) end(started time.Time, span trace.Span) {
	m.inFlight.Dec()
	observe(m.seconds, time.Since(started), span)
}

// observe adds a duration, with the ids of its span as an exemplar if that is sampled.
func observe(to prometheus.Observer, took time.Duration, span trace.Span) {
	at := span.SpanContext()
	if with, ok := to.(prometheus.ExemplarObserver); ok && at.IsValid() && at.IsSampled() {
		with.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": at.TraceID().String(), "span_id": at.SpanID().String()})
		return
	}
	to.Observe(took.Seconds())
}
