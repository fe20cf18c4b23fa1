package deadletter

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
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
