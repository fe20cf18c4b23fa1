package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

func TestMetricsShowTheDatabase(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		m := portable.NewMetrics("millrace_once", "the ledger of effects")
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(m)
		series := func(name string) map[string]float64 {
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
					if family.GetName() == "millrace_once_"+name {
						values[key] = one.GetGauge().GetValue() + one.GetCounter().GetValue()
					}
				}
			}
			return values
		}
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
