package feeder

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Metrics count what the feeder does, and show what it measured in the ledger.
type Metrics struct {
	fed       *prometheus.CounterVec
	lost      *prometheus.CounterVec
	orphans   *prometheus.CounterVec
	failures  *prometheus.CounterVec
	unknown   *prometheus.GaugeVec
	paused    *prometheus.GaugeVec
	pausedFor *prometheus.GaugeVec
	waiting   *prometheus.GaugeVec
	oldest    *prometheus.GaugeVec
	overdue   *prometheus.GaugeVec
	payouts   *prometheus.GaugeVec
	measured  prometheus.Gauge
}

// Reasons to enqueue a payout: a label of fed.
const (
	reasonNone     = "none"      // it was not queued
	reasonLostTail = "lost_tail" // its stream is drained, and it is not settled
	reasonOverdue  = "overdue"
)

// NewMetrics returns the metrics. Each series of each type exists from the first scrape: to
// Prometheus a counter that appears at 1 has not increased.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_promotion_" + name, Help: help}, append([]string{"type"}, labels...))
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_promotion_" + name, Help: help}, append([]string{"type"}, labels...))
	}
	m := &Metrics{
		fed:       counter("fed_total", "Payouts that the feeder put into a stream, by type and reason (none, lost_tail, overdue).", "reason"),
		lost:      counter("streams_lost_total", "Streams that were found deleted or recreated while their promotion was running, by type."),
		orphans:   counter("orphan_streams_total", "Streams of known promotions that were not on the active set and were reactivated by the sweep, by type."),
		failures:  counter("feeder_failures_total", "Rounds of the feeder that failed for a promotion, by type. They are tried again."),
		unknown:   gauge("unknown_streams", "Streams of promotions that are not in the ledger, by type, as of the last sweep of this instance. They are not read."),
		paused:    gauge("paused", "Paused promotions, by type. All instances export the same value."),
		pausedFor: gauge("paused_seconds", "Time since the pause of the promotion that was paused first, by type; 0 when none is paused."),
		waiting:   gauge("waiting_for_place", "Promotions with unpaid payouts that wait until fewer than max_active_promotions are active, by type. All instances export the same value."),
		oldest:    gauge("oldest_unpaid_seconds", "Age of the oldest payout that is not settled, by type, over all promotions that are not paused."),
		overdue:   gauge("overdue_seconds", "Age of the oldest due payout, by type; 0 when nothing is due."),
		payouts:   gauge("payouts", "Settled payouts in the ledger, by type and state. All instances export the same value.", "state"),
		measured: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_promotion_measured_timestamp_seconds",
			Help: "Unix time at which the ledger last reported what is waiting. The gauges above are as old as that.",
		}),
	}
	for _, t := range promotiontype.Names() {
		for _, reason := range []string{reasonNone, reasonLostTail, reasonOverdue} {
			m.fed.WithLabelValues(t, reason)
		}
		for _, c := range []*prometheus.CounterVec{m.lost, m.orphans, m.failures} {
			c.WithLabelValues(t)
		}
		for _, g := range []*prometheus.GaugeVec{m.unknown, m.paused, m.pausedFor, m.waiting, m.oldest, m.overdue} {
			g.WithLabelValues(t)
		}
		m.settled(ledger.Totals{Type: payouts.Type(t)})
	}
	return m
}

func (m *Metrics) pausedNow(all []ledger.PausedPromotion) {
	number, longest := map[string]float64{}, map[string]float64{}
	for _, p := range all {
		number[string(p.Type)]++
		longest[string(p.Type)] = max(longest[string(p.Type)], p.For.Seconds())
	}
	for _, t := range promotiontype.Names() {
		m.paused.WithLabelValues(t).Set(number[t])
		m.pausedFor.WithLabelValues(t).Set(longest[t])
	}
}

func (m *Metrics) settled(t ledger.Totals) {
	for state, n := range map[rules.State]int64{
		rules.Success: t.Paid, rules.Failed: t.Failed, rules.Unknown: t.Unknown, rules.Cancelled: t.Cancelled,
	} {
		m.payouts.WithLabelValues(string(t.Type), string(state)).Set(float64(n))
	}
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.fed, m.lost, m.orphans, m.failures, m.unknown, m.paused, m.pausedFor, m.waiting,
		m.oldest, m.overdue, m.payouts, m.measured}
}
