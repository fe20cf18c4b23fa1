package promotion

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// metrics are the plugin's own, and those of the Money API's client as soon as it exists.
type metrics struct {
	fed      *prometheus.CounterVec
	lost     *prometheus.CounterVec
	orphans  *prometheus.CounterVec
	failures *prometheus.CounterVec
	oldest   *prometheus.GaugeVec
	client   func() *money.Client // nil client: not yet
}

func newMetrics() *metrics {
	return &metrics{
		fed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_promotion_fed_total",
			Help: "Payouts that the feeder put into a stream, by type and reason (none, lost_tail, overdue).",
		}, []string{"type", "reason"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_promotion_streams_lost_total",
			Help: "Streams that were found gone or made anew while their promotion was running, by type.",
		}, []string{"type"}),
		orphans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_promotion_orphan_streams_total",
			Help: "Streams that nobody knew and the sweep put back on the active set, by type.",
		}, []string{"type"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_promotion_feeder_failures_total",
			Help: "Rounds of the feeder that failed for a promotion, by type. They are tried again.",
		}, []string{"type"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_promotion_oldest_unpaid_seconds",
			Help: "How long the oldest payout that is due has been waiting, by type, over all promotions that are not paused.",
		}, []string{"type"}),
		client: func() *money.Client { return nil },
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.fed, m.lost, m.orphans, m.failures, m.oldest, clientMetrics{m}}
}

// clientMetrics passes on what the Money API's client counts. It describes nothing beforehand, since
// the client doesn't exist when collectors are registered.
type clientMetrics struct{ *metrics }

func (clientMetrics) Describe(chan<- *prometheus.Desc) {}

func (c clientMetrics) Collect(out chan<- prometheus.Metric) {
	if client := c.client(); client != nil {
		for _, one := range client.Collectors() {
			one.Collect(out)
		}
	}
}
