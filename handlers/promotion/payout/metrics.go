package payout

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Metrics count what this instance does with payouts.
type Metrics struct {
	unannounced    *prometheus.CounterVec
	cancelled      *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	results        prometheus.Gauge
	resultsTrimmed prometheus.Counter
}

// stale is the label of an attempt after which another worker already owned the payout.
const stale = "stale"

// NewMetrics returns the metrics. Each series of each type exists from the first scrape: to
// Prometheus a counter that appears at 1 has not increased.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_promotion_" + name, Help: help}, append([]string{"type"}, labels...))
	}
	m := &Metrics{
		unannounced: counter("unannounced_total", "Stream entries and retry records of payouts that are not in the ledger, by type. Nothing is paid for them."),
		cancelled:   counter("accepted_cancelled_total", "Records that were accepted for a cancelled promotion, by type. Their payouts are CANCELLED at once."),
		attempts:    counter("attempts_total", "Calls and lookups that this instance settled, by type and the state of the payout after it. State stale: another worker already owned the payout.", "state"),
		results: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_promotion_results_entries", Help: "Events in the results stream; 0 unless results are enabled.",
		}),
		resultsTrimmed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_promotion_results_trimmed_total", Help: "Events that this instance removed from the results stream.",
		}),
	}
	for _, t := range promotiontype.Names() {
		m.unannounced.WithLabelValues(t)
		m.cancelled.WithLabelValues(t)
		for _, state := range []rules.State{rules.Success, rules.Errored, rules.Ambiguous, rules.Failed, rules.Unknown, rules.Cancelled, stale} {
			m.attempts.WithLabelValues(t, string(state))
		}
	}
	return m
}

// attempted counts an attempt that was settled.
func (m *Metrics) attempted(name string, s ledger.SettleResult) {
	state := s.State
	if s.Stale {
		state = stale
	}
	m.attempts.WithLabelValues(name, string(state)).Inc()
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.unannounced, m.cancelled, m.attempts, m.results, m.resultsTrimmed}
}
