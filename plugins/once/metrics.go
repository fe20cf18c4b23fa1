package once

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// metrics are those of all kinds.
type metrics struct {
	accepted *prometheus.CounterVec
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	ended    *prometheus.CounterVec
	inFlight *prometheus.GaugeVec
	backlog  *prometheus.GaugeVec
	oldest   *prometheus.GaugeVec
	tokens   *prometheus.CounterVec
	waited   *prometheus.CounterVec
	entries  *prometheus.CounterVec
	results  *prometheus.CounterVec
	late     *prometheus.GaugeVec
	database *ledger.Metrics
}

func newMetrics() *metrics {
	return &metrics{
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_accepted_total",
			Help: "Records and values that this instance has accepted, by kind and result (fresh, known, cancelled, conflict). Those of EnqueueTx are not counted, because only its caller knows whether it commits.",
		}, []string{"kind", "result"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_calls_total",
			Help: "Calls of the far side, by kind of effect, call (send, lookup) and class of the answer.",
		}, []string{"kind", "call", "class"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "millrace_once_call_duration_seconds",
			Help:    "Time of one call of the far side, by kind of effect.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"kind"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_attempts_total",
			Help: "Calls whose end was stored, by kind of effect and the state that followed. Stale ones came after another lease and changed nothing.",
		}, []string{"kind", "state"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_once_in_flight",
			Help: "Effects that this instance has claimed and not settled yet, by kind.",
		}, []string{"kind"}),
		backlog: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_once_backlog",
			Help: "Effects of all instances at the last measurement, by kind and state: due, of which the first ten thousand are counted, waiting, calling, failed, unknown.",
		}, []string{"kind", "state"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_once_oldest_due_seconds",
			Help: "How long the oldest due effect has waited for a call at the last measurement, by kind; 0 when none is due.",
		}, []string{"kind"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_limit_tokens_total",
			Help: "Tokens of the limit per_second, by kind: granted to this instance, each for one call to begin, and lost, because no call began in their time.",
		}, []string{"kind", "tokens"}),
		waited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_limit_wait_seconds_total",
			Help: "Time in which this instance began no call although it had a free place, by kind and the limit that it waited for (per_second, in_flight, or far_side: the rate at which the API answers).",
		}, []string{"kind", "limit"}),
		entries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_entries_total",
			Help: "Entries of accepted effects for the streams of their groups, by kind and outcome (added, full, failed). Effects whose entries were not added wait for their grace.",
		}, []string{"kind", "outcome"}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_once_results_total",
			Help: "Results of effects that this instance has published, and batches of them that failed and are tried again, by kind and outcome (published, failed).",
		}, []string{"kind", "outcome"}),
		late: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_once_oldest_result_seconds",
			Help: "How long the oldest result of all instances has waited to be published at the last measurement, by kind; 0 when none waits.",
		}, []string{"kind"}),
		database: ledger.NewMetrics(),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return append(m.database.Collectors(), m.accepted, m.calls, m.seconds, m.ended, m.inFlight, m.backlog, m.oldest, m.tokens, m.waited, m.entries, m.results, m.late)
}

// acceptedResults are the results of an acceptance, as a label.
func acceptedResults() map[Accepted]string {
	return map[Accepted]string{Fresh: "fresh", Known: "known", Cancelled: "cancelled", Conflict: "conflict"}
}

// begin gives the counters of ends and acceptances their series, because an increase from no series to 1 is none in Prometheus.
func (m *metrics) begin(kind string, results bool) {
	if results {
		for _, outcome := range []string{resultPublished, resultFailed} {
			m.results.WithLabelValues(kind, outcome)
		}
	}
	for _, result := range acceptedResults() {
		m.accepted.WithLabelValues(kind, result)
	}
	for _, state := range []rules.State{rules.Success, rules.Errored, rules.Ambiguous, rules.Failed, rules.Unknown, rules.Cancelled, stale} {
		m.ended.WithLabelValues(kind, string(state))
	}
}

// What became of tokens, as a label.
const (
	tokenGranted = "granted"
	tokenLost    = "lost"
)

// stale is the state of an end that came after another lease, as a label.
const stale = "stale"

func (m *metrics) called(kind string, lookup bool, a Answer, took time.Duration) {
	call := "send"
	if lookup {
		call = "lookup"
	}
	m.calls.WithLabelValues(kind, call, a.Class.String()).Inc()
	m.seconds.WithLabelValues(kind).Observe(took.Seconds())
}

// countAccepted counts what was accepted, and warns of effects of cancelled groups, because their publisher may not know.
func (w *worker) countAccepted(records []ledger.Record, results []ledger.AcceptResult) {
	counts := map[Accepted]int{}
	for i, r := range results {
		if counts[r.Accepted]++; r.Accepted == Cancelled && counts[Cancelled] == 1 {
			w.plugin.sampled.Warn(w.plugin.log, "a cancelled group still gets effects, which are not called for", slog.String("kind", w.name), slog.String("group", records[i].Group))
		}
	}
	for accepted, label := range acceptedResults() {
		w.plugin.metrics.accepted.WithLabelValues(w.name, label).Add(float64(counts[accepted]))
	}
}

func (m *metrics) settled(kind string, s ledger.Settled) {
	state := string(s.State)
	if s.Stale {
		state = stale
	}
	m.ended.WithLabelValues(kind, state).Inc()
}

// measurement is what a kind's backlog was.
type measurement struct {
	at      time.Time
	backlog ledger.Backlog
	held    int // paused groups that hold effects back
	// pausedAt is the last measurement at which the kind was paused.
	pausedAt time.Time
	results  int64 // that are not published yet, if the kind publishes any
	// resultsOldest is how long the oldest of them has waited.
	resultsOldest time.Duration
}

// measure reads the backlog for the metrics and the readiness check.
func (w *worker) measure(ctx context.Context, l *ledger.Ledger) {
	w.measuring.Lock()
	defer w.measuring.Unlock()
	b, err := l.Backlog(ctx, w.name)
	held := 0
	if err == nil {
		held, err = l.PausedGroups(ctx, w.name)
	}
	now := &measurement{}
	if err == nil && w.results != nil {
		now.results, now.resultsOldest, err = l.ResultsWaiting(ctx, w.name)
	}
	if err != nil {
		if ctx.Err() == nil {
			w.warn("the backlog of effects was not measured, which is tried again", err)
		}
		return
	}
	now.at, now.backlog, now.held = time.Now(), b, held
	if b.Paused != nil {
		now.pausedAt = now.at
	} else if before := w.measured.Load(); before != nil {
		now.pausedAt = before.pausedAt
	}
	w.measured.Store(now)
	m := w.plugin.metrics
	for state, n := range map[string]int64{"due": b.Due, "waiting": b.Waiting, "calling": b.Calling, "failed": b.Failed, "unknown": b.Unknown} {
		m.backlog.WithLabelValues(w.name, state).Set(float64(n))
	}
	m.oldest.WithLabelValues(w.name).Set(b.OldestDue.Seconds())
	m.inFlight.WithLabelValues(w.name).Set(float64(w.inFlight.Load()))
	if w.results != nil {
		m.late.WithLabelValues(w.name).Set(now.resultsOldest.Seconds())
	}
	w.tellActivity(ctx, l)
	if err := l.LearnLost(ctx, w.name); err != nil && ctx.Err() == nil { // it accepts while it claims nothing
		w.warn("the ledger was not asked whether it was restored, which is tried again", err)
	}
}

// warn logs work of this kind that failed and is tried again, once a minute.
func (w *worker) warn(text string, err error) {
	w.plugin.sampled.Warn(w.plugin.log, text, slog.String("kind", w.name), logs.Err(err))
}

// stalledAfter is how long an effect may be due while this instance settles none of its kind.
const stalledAfter = time.Minute

// check fails when the ledger is not measured any more, or when work is due and this instance settles none.
func (w *worker) check(now time.Time) error {
	m := w.measured.Load()
	switch {
	case m == nil:
		return errors.New("the ledger was not measured yet")
	case now.Sub(m.at) > measureStale:
		return fmt.Errorf("the ledger was last measured %s ago; see the log for the error", now.Sub(m.at).Round(time.Second))
	case now.Sub(time.Unix(0, w.limited.Load())) < stalledAfter: // a limit holds the work up, as it is meant to
	case now.Sub(m.pausedAt) < stalledAfter: // what has been due since before the pause is called for now
	case m.backlog.OldestDue > stalledAfter && now.Sub(time.Unix(0, w.lastSettled.Load())) > stalledAfter:
		return fmt.Errorf("an effect has been due for %s, and this instance has settled none for %s",
			m.backlog.OldestDue.Round(time.Second), stalledAfter)
	}
	return nil
}
