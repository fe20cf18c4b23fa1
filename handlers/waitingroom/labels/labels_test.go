package labels_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/labels"
)

func TestTheLargestEventsHaveLabelsOfTheirOwn(t *testing.T) {
	t.Parallel()
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "joins"}, []string{"event", "kind"})
	l := labels.New(vec.MetricVec)
	sizes := map[string]int64{}
	for i := range 60 {
		event := fmt.Sprintf("event-%02d", i)
		sizes[event] = int64(i)
		vec.WithLabelValues(l.Name(event), "new").Inc()
	}
	require.Equal(t, 51, testutil.CollectAndCount(vec), "the first 50, and other")
	require.InDelta(t, 10, testutil.ToFloat64(vec.WithLabelValues("other", "new")), 0)
	l.Choose(sizes)
	require.Equal(t, "event-59", l.Name("event-59"))
	require.Equal(t, "event-10", l.Name("event-10"))
	require.Equal(t, "other", l.Name("event-09"))
	require.Equal(t, 41, testutil.CollectAndCount(vec), "series of small events are removed")
}
