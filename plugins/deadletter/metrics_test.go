package deadletter

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// A counter that appears at 1 is no increase to Prometheus.
func TestATopicIsCountedFromZero(t *testing.T) {
	t.Parallel()
	p := New(&topics{})
	p.Sink("orders-dead")
	require.NoError(t, testutil.CollectAndCompare(p.metrics.published, strings.NewReader(`
# HELP millrace_deadletter_published_total Dead letters that are durable in their topic.
# TYPE millrace_deadletter_published_total counter
millrace_deadletter_published_total{topic="orders-dead"} 0
`)))
}

func TestStoredDeadLettersAreCounted(t *testing.T) {
	t.Parallel()
	p := New(&topics{})
	waiting := func(class string, state store.State) float64 {
		return testutil.ToFloat64(p.metrics.stored.WithLabelValues(class, string(state)))
	}
	p.metrics.setStored(nil)
	require.Equal(t, len(store.Waiting()), testutil.CollectAndCount(p.metrics.stored), "none waiting is a number too")

	p.metrics.setStored([]store.Tally{{Class: "conflict", State: store.Open, Count: 3}, {Class: "conflict", State: store.Open, Count: 2}})
	require.InDelta(t, 5, waiting("conflict", store.Open), 0)
	require.InDelta(t, 0, waiting(noClass, store.Open), 0)

	p.metrics.setStored(nil)
	require.Equal(t, len(store.Waiting()), testutil.CollectAndCount(p.metrics.stored), "what a person has settled is gone")
}

// A scrape shows the connections of the store, and the sizes of its tables as they were measured last.
func TestTheDatabaseOfTheStoreIsMeasured(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		p := o.plugin()
		values := func() map[string]float64 { // by name and labels
			all := prometheus.NewPedanticRegistry()
			all.MustRegister(p.metrics.database)
			families, err := all.Gather()
			require.NoError(t, err)
			found := map[string]float64{}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					name := strings.TrimPrefix(f.GetName(), "millrace_deadletter_")
					for _, l := range m.GetLabel() {
						name += " " + l.GetValue()
					}
					found[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
			return found
		}
		require.Empty(t, values(), "it is not open")
		reg, err := pipeline.NewRegistry(pipeline.Env{}, p)
		require.NoError(t, err)
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
		require.NoError(t, rt.StartServices(t.Context()))
		open := values()
		require.Contains(t, open, "connections store idle")
		require.Contains(t, open, "connections store in_use")
		require.Contains(t, open, "connection_waits_total store")
		require.Contains(t, open, "connection_wait_seconds_total store")
		require.InDelta(t, 4, open["connections_limit store"], 0)
		if portable.DialectOf(o.dsn) == portable.Postgres {
			require.Eventually(t, func() bool { return values()["table_bytes dead_letters"] > 0 }, 2*time.Minute, time.Millisecond)
			measured := values()
			for _, table := range []string{"dead_letters", "dead_letter_actions", "dead_letter_prunes"} {
				require.Positive(t, measured["table_bytes "+table])
				require.Contains(t, measured, "table_rows live "+table)
				require.Contains(t, measured, "table_rows dead "+table)
			}
		}
		require.NoError(t, rt.Stop(context.WithoutCancel(t.Context())))
		require.Empty(t, values(), "a closed store has none")
	})
}
