package labels_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// The users of an event may come and go, or poll. Its counters go on.
func TestAnEventWithoutUsersKeepsItsSeriesForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "joins"}, []string{"event", "kind"})
		l := labels.New(vec.MetricVec)
		vec.WithLabelValues(l.Name("polled"), "new").Inc()
		l.Choose(nil)
		require.Equal(t, 1, testutil.CollectAndCount(vec))
		time.Sleep(6 * time.Minute)
		require.Equal(t, "polled", l.Name("polled"), "it is used")
		time.Sleep(6 * time.Minute)
		l.Choose(nil)
		require.Equal(t, 1, testutil.CollectAndCount(vec))
		time.Sleep(6 * time.Minute)
		l.Choose(map[string]int64{"other-event": 1})
		require.Zero(t, testutil.CollectAndCount(vec))
	})
}
