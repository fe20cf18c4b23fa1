package ledger

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// series returns the values of a metric by the values of its labels, the count of a histogram.
func series(t *testing.T, m *Metrics, name string) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
	families, err := reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, one := range family.GetMetric() {
			key := ""
			for _, l := range one.GetLabel() {
				key += l.GetValue() + " "
			}
			values[key] = one.GetGauge().GetValue() + one.GetCounter().GetValue() + float64(one.GetHistogram().GetSampleCount())
		}
	}
	return values
}

func TestMetricsShowTheDatabase(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		m := NewMetrics()
		l := h.open(t, func(_ *Config, o *Options) { o.Metrics = m })
		mustAccept(t, l, record(1, 1))
		require.Equal(t, rules.Send, mustBegin(t, l, record(1, 1)).Next)
		for _, name := range []string{"millrace_ledger_batch_duration_seconds", "millrace_ledger_batch_payouts"} {
			require.Equal(t, map[string]float64{"accept ": 1, "begin ": 1, "not_enqueued ": 0, "settle ": 0}, series(t, m, name), name)
		}

		require.Positive(t, series(t, m, "millrace_ledger_connections_limit")["payouts "])
		require.Positive(t, series(t, m, "millrace_ledger_connections_limit")["reports "])
		require.Equal(t, 0.0, series(t, m, "millrace_ledger_connections")["payouts in_use "])
		tx, _, err := l.store.begin(t.Context(), readRequest{})
		require.NoError(t, err)
		require.Equal(t, 1.0, series(t, m, "millrace_ledger_connections")["payouts in_use "])
		tx.rollback()
		require.Equal(t, 0.0, series(t, m, "millrace_ledger_connections")["payouts in_use "])

		require.NoError(t, l.MeasureTables(t.Context()))
		if _, measures := l.store.(*postgres); measures {
			require.Eventually(t, func() bool { // PostgreSQL's statistics come later
				require.NoError(t, l.MeasureTables(t.Context()))
				return len(series(t, m, "millrace_ledger_table_bytes")) == len(tables())
			}, 2*time.Minute, 10*time.Millisecond)
			require.ElementsMatch(t, slices.Concat(tables(), []string{"ledger_migrations"}), tablesOf(t, l), "each table is measured")
		}

		require.NoError(t, l.Close())
		require.Empty(t, series(t, m, "millrace_ledger_connections"), "a closed ledger has none")
		require.Empty(t, series(t, m, "millrace_ledger_table_bytes"))
	})
}

// tablesOf returns the tables of the database.
func tablesOf(t *testing.T, l *Ledger) (all []string) {
	t.Helper()
	require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
		return q.query(t.Context(), func(row scanner) error {
			var name string
			err := row.Scan(&name)
			all = append(all, name)
			return err
		}, "SELECT relname FROM pg_stat_user_tables WHERE schemaname = current_schema()")
	}))
	return all
}

// TestMetricsCountWaitsForTheWriter: SQLite has one connection that writes.
func TestMetricsCountWaitsForTheWriter(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	l := newSQLiteDB(t).open(t, func(_ *Config, o *Options) { o.Metrics = m })
	before := series(t, m, "millrace_ledger_connection_waits_total")["payouts "]
	tx, _, err := l.store.begin(t.Context(), readRequest{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, _, err = l.store.begin(ctx, readRequest{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	tx.rollback()
	require.Equal(t, before+1, series(t, m, "millrace_ledger_connection_waits_total")["payouts "])
	require.Positive(t, series(t, m, "millrace_ledger_connection_wait_seconds_total")["payouts "])
}

// TestMetricsCountFailuresByCause meets a lock, a row that changed, and a statement that the database refuses.
func TestMetricsCountFailuresByCause(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	h := newPostgresDB(t)
	l := h.open(t, func(_ *Config, o *Options) { o.Metrics = m })
	failures := func(cause string) float64 {
		return series(t, m, "millrace_ledger_transaction_failures_total")[cause+" "]
	}
	store, ok := l.store.(*postgres)
	require.True(t, ok)
	for cause, sqlstate := range map[string]string{"contended": "40P01", "locked": "55P03", "stale": pgStaleRow, "unreachable": "57P01", "data": "22021", "refused": "23505"} {
		failed := func(_ context.Context, tx transaction, _ *readResult, _ *writeSet) error {
			at, ok := tx.(*pgTransaction)
			require.True(t, ok)
			_, err := at.conn.Exec(t.Context(), "DO $$ BEGIN RAISE SQLSTATE '"+sqlstate+"'; END $$")
			return err
		}
		before := failures(cause)
		require.Error(t, l.transact(t.Context(), readRequest{}, failed), cause)
		require.Greater(t, failures(cause), before, cause)
	}
	// The pool closes a connection in a transaction that has failed, and does so on a goroutine of its own.
	require.Eventually(t, func() bool { return store.hot.Stat().AcquiredConns() == 0 }, time.Minute, time.Millisecond, "a connection was kept")
	all := series(t, m, "millrace_ledger_transaction_failures_total")
	require.ErrorIs(t, l.transact(t.Context(), readRequest{}, func(context.Context, transaction, *readResult, *writeSet) error { return ErrNotFound }), ErrNotFound)
	require.Equal(t, all, series(t, m, "millrace_ledger_transaction_failures_total"), "what is asked in vain is no failure of the database")
}
