package promotion

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// metrics are the plugin's own, and those of the Money API's client as soon as it exists. No label is an id: there
// may be a million of them.
type metrics struct {
	fed            *prometheus.CounterVec
	lost           *prometheus.CounterVec
	orphans        *prometheus.CounterVec
	failures       *prometheus.CounterVec
	unannounced    *prometheus.CounterVec
	unknown        *prometheus.GaugeVec
	paused         *prometheus.GaugeVec
	pausedFor      *prometheus.GaugeVec
	waiting        *prometheus.GaugeVec
	born           *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	oldest         *prometheus.GaugeVec
	overdue        *prometheus.GaugeVec
	payouts        *prometheus.GaugeVec
	measured       prometheus.Gauge
	results        prometheus.Gauge
	resultsTrimmed prometheus.Counter
	client         func() *money.Client // nil client: not yet
}

// Why the feeder put a payout into a stream: a label of metrics.
const (
	fedNone     = "none"
	fedLostTail = "lost_tail"
	fedOverdue  = "overdue"
)

// stale stands for the state in which an attempt left its payout when somebody else had taken over meanwhile.
const stale = "stale"

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_promotion_" + name, Help: help}, append([]string{"type"}, labels...))
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_promotion_" + name, Help: help}, append([]string{"type"}, labels...))
	}
	m := &metrics{
		fed:         counter("fed_total", "Payouts that the feeder put into a stream, by type and reason (none, lost_tail, overdue).", "reason"),
		lost:        counter("streams_lost_total", "Streams that were found gone or made anew while their promotion was running, by type."),
		orphans:     counter("orphan_streams_total", "Streams of known promotions that were not on the active set and were put back by the sweep, by type."),
		failures:    counter("feeder_failures_total", "Rounds of the feeder that failed for a promotion, by type. They are tried again."),
		unannounced: counter("unannounced_total", "Stream entries and retry records that no accepted record announced, by type. Nothing is paid for them."),
		unknown:     gauge("unknown_streams", "Streams with the prefix of a type that belong to no promotion of the ledger, as the last sweep of this instance found them. They are not read."),
		paused:      gauge("paused", "Promotions that a person has paused, by type. Every instance tells the same number."),
		pausedFor:   gauge("paused_seconds", "For how long the promotion has been paused that was paused first, by type; 0 when none is."),
		waiting:     gauge("waiting_for_place", "Promotions with unpaid payouts that wait until fewer than max_active_promotions are active, by type. Every instance reports the same number."),
		born:        counter("accepted_cancelled_total", "Records that were accepted for a cancelled promotion, by type. Their payouts are CANCELLED at once."),
		attempts:    counter("attempts_total", "Attempts and questions written down here, by type and the state that they left the payout in; stale: it was not theirs any more.", "state"),
		oldest:      gauge("oldest_unpaid_seconds", "How long ago the oldest payout was accepted that is not settled, by type, over all promotions that are not paused."),
		overdue:     gauge("overdue_seconds", "For how long the longest-waiting payout could have been worked on, by type; 0 when nothing is due."),
		payouts:     gauge("payouts", "Settled payouts in the ledger, by type and state, whoever settled them.", "state"),
		measured: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_promotion_measured_timestamp_seconds",
			Help: "Unix time at which the ledger last told what is waiting. The gauges above are as old as that.",
		}),
		results: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_promotion_results_entries", Help: "Events in the results stream; 0 unless results are enabled.",
		}),
		resultsTrimmed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_promotion_results_trimmed_total", Help: "Events that this instance removed from the results stream.",
		}),
		client: func() *money.Client { return nil },
	}
	for _, kind := range kinds() {
		m.known(kind)
	}
	return m
}

// known makes the series of a type, so that they are there at 0 from the first scrape: a counter that appears at 1 is
// no increase to Prometheus.
func (m *metrics) known(kind string) {
	for _, reason := range []string{fedNone, fedLostTail, fedOverdue} {
		m.fed.WithLabelValues(kind, reason)
	}
	for _, c := range []*prometheus.CounterVec{m.lost, m.orphans, m.failures, m.unannounced, m.born} {
		c.WithLabelValues(kind)
	}
	for _, state := range []ledger.State{ledger.Success, ledger.Errored, ledger.Ambiguous, ledger.Failed, ledger.Unknown, ledger.Cancelled, stale} {
		m.attempts.WithLabelValues(kind, string(state))
	}
	m.unknown.WithLabelValues(kind)
	m.paused.WithLabelValues(kind)
	m.pausedFor.WithLabelValues(kind)
	m.waiting.WithLabelValues(kind)
	m.oldest.WithLabelValues(kind)
	m.overdue.WithLabelValues(kind)
	m.settled(ledger.Totals{Type: ledger.Type(kind)})
}

// pausedNow sets how many promotions are paused, and since when the longest is.
func (m *metrics) pausedNow(all []ledger.PausedPromotion) {
	number, longest := map[string]float64{}, map[string]float64{}
	for _, p := range all {
		number[string(p.Type)]++
		longest[string(p.Type)] = max(longest[string(p.Type)], p.For.Seconds())
	}
	for _, kind := range kinds() {
		m.paused.WithLabelValues(kind).Set(number[kind])
		m.pausedFor.WithLabelValues(kind).Set(longest[kind])
	}
}

// attempted counts an attempt that was written down.
func (m *metrics) attempted(kind string, s ledger.Settled) {
	state := string(s.State)
	if s.Stale {
		state = stale
	}
	m.attempts.WithLabelValues(kind, state).Inc()
}

func (m *metrics) settled(t ledger.Totals) {
	for state, n := range map[ledger.State]int64{
		ledger.Success: t.Paid, ledger.Failed: t.Failed, ledger.Unknown: t.Unknown, ledger.Cancelled: t.Cancelled,
	} {
		m.payouts.WithLabelValues(string(t.Type), string(state)).Set(float64(n))
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.fed, m.lost, m.orphans, m.failures, m.unannounced, m.unknown, m.paused, m.pausedFor, m.waiting, m.born, m.attempts, m.oldest, m.overdue, m.payouts, m.measured, m.results, m.resultsTrimmed, clientMetrics{m}}
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
