package ledger

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// seriesOf returns the series of a metric by the values of their labels. Those of a histogram are how often it
// observed.
func seriesOf(t *testing.T, m *Metrics) func(name string) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
	return func(name string) map[string]float64 {
		t.Helper()
		families, err := reg.Gather()
		require.NoError(t, err)
		values := map[string]float64{}
		for _, family := range families {
			for _, one := range family.GetMetric() {
				key := ""
				for _, l := range one.GetLabel() {
					key += l.GetValue() + " "
				}
				switch "millrace_once_" + name {
				case family.GetName() + "_sum":
					values[key] = one.GetHistogram().GetSampleSum()
				case family.GetName():
					values[key] = one.GetGauge().GetValue() + one.GetCounter().GetValue() + float64(one.GetHistogram().GetSampleCount())
				}
			}
		}
		return values
	}
}

// Each batch is observed once, however many tries it took, and each failed try is counted by its cause.
func TestMetricsShowBatchesAndFailures(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	series := seriesOf(t, m)
	h := newTestDB("sqlite:" + filepath.Join(t.TempDir(), "once.db"))
	l := h.open(t, func(_ *Config, o *Options) { o.Metrics = m })
	for _, name := range []string{"batch_duration_seconds", "batch_effects"} {
		require.Equal(t, map[string]float64{"accept ": 0, "claim ": 0, "settle ": 0}, series(name), "from the first scrape")
	}
	require.Len(t, series("transaction_failures_total"), len(causes()))
	mustAccept(t, l, record("acme", 1), record("acme", 2), record("acme", 3))
	l.store = &rotated{store: l.store}
	claimed := claimAll(t, l, "invoice")
	require.Len(t, claimed, 3)
	mustSettle(t, l, end(claimed[0], rules.Done), end(claimed[1], rules.Done))
	for _, name := range []string{"batch_duration_seconds", "batch_effects"} {
		require.Equal(t, map[string]float64{"accept ": 1, "claim ": 1, "settle ": 1}, series(name))
	}
	require.Equal(t, map[string]float64{"accept ": 3, "claim ": 3, "settle ": 2}, series("batch_effects_sum"))
	failures := map[string]float64{"contended ": 0, "locked ": 0, "data ": 0, "unreachable ": 1, "refused ": 3}
	require.Equal(t, failures, series("transaction_failures_total"))
	_, err := l.Explain(t.Context(), key("acme", 4))
	require.ErrorIs(t, err, ErrNotFound)
	results, err := l.Settle(t.Context(), []End{{Key: key("acme", 4), CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Done}}})
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, ErrNotFound)
	require.Equal(t, failures, series("transaction_failures_total"), "what is asked in vain is no failure of the database")
}

func TestMetricsShowTheDatabase(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		m := NewMetrics()
		series := seriesOf(t, m)
		require.Empty(t, series("connections"), "no ledger is open")
		l := h.open(t, func(_ *Config, o *Options) { o.Metrics = m })
		require.Positive(t, series("connections_limit")["effects "])
		require.Positive(t, series("connections_limit")["reports "])
		require.Equal(t, 0.0, series("connections")["effects in_use "])
		tx, _, err := l.store.begin(t.Context(), readRequest{})
		require.NoError(t, err)
		require.Equal(t, 1.0, series("connections")["effects in_use "])
		tx.rollback()
		require.Equal(t, 0.0, series("connections")["effects in_use "])

		require.NoError(t, l.MeasureTables(t.Context()))
		if _, measures := l.store.(*postgres); measures {
			require.Eventually(t, func() bool { // PostgreSQL's statistics come later
				require.NoError(t, l.MeasureTables(t.Context()))
				return len(series("table_bytes")) == len(tables())
			}, 2*time.Minute, 10*time.Millisecond)
			var all []string
			require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
				return q.query(t.Context(), func(row scanner) error {
					var name string
					err := row.Scan(&name)
					all = append(all, name)
					return err
				}, "SELECT relname FROM pg_stat_user_tables WHERE schemaname = current_schema()")
			}))
			require.ElementsMatch(t, slices.Concat(tables(), []string{"once_migrations"}), all, "each table is measured")
		}

		require.NoError(t, l.CloseContext(t.Context()))
		require.Empty(t, series("connections"), "a closed ledger has none")
		require.Empty(t, series("table_bytes"))
	})
}
