package deadletter

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// A counter that appears at 1 is no increase to Prometheus.
func TestATopicIsCountedFromZero(t *testing.T) {
	t.Parallel()
	p := New(&topics{}, nil)
	p.Sink("orders-dead")
	require.NoError(t, testutil.CollectAndCompare(p.metrics.published, strings.NewReader(`
# HELP millrace_deadletter_published_total Dead letters made durable, by topic.
# TYPE millrace_deadletter_published_total counter
millrace_deadletter_published_total{topic="orders-dead"} 0
`)))
}

func TestWaitingLettersAreShown(t *testing.T) {
	t.Parallel()
	p := New(&topics{}, nil)
	waiting := func(class string, state letters.State) float64 {
		return testutil.ToFloat64(p.metrics.waiting.WithLabelValues(class, string(state)))
	}
	p.showTallies(nil)
	require.Equal(t, len(letters.Waiting()), testutil.CollectAndCount(p.metrics.waiting), "none waiting is a number too")

	p.showTallies([]letters.Tally{{Class: "conflict", State: letters.Open, Letters: 3}, {Class: "conflict", State: letters.Open, Letters: 2}})
	require.InDelta(t, 5, waiting("conflict", letters.Open), 0)
	require.InDelta(t, 0, waiting(noClass, letters.Open), 0)

	p.showTallies(nil)
	require.Equal(t, len(letters.Waiting()), testutil.CollectAndCount(p.metrics.waiting), "what a person has settled is gone")
}
