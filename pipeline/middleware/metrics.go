package middleware

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
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
}

func newMetrics() *metrics {
	return &metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_messages_total",
			Help: "Messages handled, by route, outcome and error class (empty when acked).",
		}, []string{"route", "outcome", "class"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "millrace_message_duration_seconds",
			Help:    "Time from receiving a message to its ack or nack, by route.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
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
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.messages, m.seconds, m.inFlight, m.last, m.stuck}
}

func (m *metrics) measure(route string, next message.HandlerFunc) message.HandlerFunc {
	seconds, inFlight, last := m.seconds.WithLabelValues(route), m.inFlight.WithLabelValues(route), m.last.WithLabelValues(route)
	return func(msg *message.Message) ([]*message.Message, error) {
		begin := time.Now()
		last.Set(float64(begin.UnixMilli()) / 1000)
		inFlight.Inc()
		defer func() {
			inFlight.Dec()
			seconds.Observe(time.Since(begin).Seconds())
		}()
		return next(msg)
	}
}
