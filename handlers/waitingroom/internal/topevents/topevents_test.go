package topevents_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
)

func TestTheLargestEventsHaveLabelsOfTheirOwn(t *testing.T) {
	t.Parallel()
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "joins"}, []string{"event", "kind"})
	l := topevents.New()
	l.Add(vec, "new")
	sizes := map[string]int64{}
	for i := range 60 {
		event := fmt.Sprintf("event-%02d", i)
		sizes[event] = int64(i)
		vec.WithLabelValues(l.Name(event), "new").Inc()
	}
	require.Equal(t, 51, testutil.CollectAndCount(vec), "the first 50, and other")
	require.InDelta(t, 10, testutil.ToFloat64(vec.WithLabelValues("other", "new")), 0)
	l.Choose("dispatcher", sizes)
	require.Equal(t, "event-59", l.Name("event-59"))
	require.Equal(t, "event-10", l.Name("event-10"))
	require.Equal(t, "other", l.Name("event-09"))
	require.Equal(t, 51, testutil.CollectAndCount(vec), "series of small events are removed, and large ones begin with 0")
	require.InDelta(t, 0, testutil.ToFloat64(vec.WithLabelValues("event-55", "new")), 0)
	l.Choose("broker", map[string]int64{"event-09": 100})
	require.Equal(t, "event-09", l.Name("event-09"), "another part of the process has many users of it")
	require.Equal(t, "other", l.Name("event-10"))
	require.Equal(t, "event-59", l.Name("event-59"))
}

// The users of an event may come and go, or poll. Its counters go on.
func TestAnEventWithoutUsersKeepsItsSeriesForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "joins"}, []string{"event", "kind"})
		l := topevents.New()
		l.Add(vec, "new")
		vec.WithLabelValues(l.Name("polled"), "new").Inc()
		l.Choose("broker", nil)
		require.Equal(t, 1, testutil.CollectAndCount(vec))
		time.Sleep(6 * time.Minute)
		require.Equal(t, "polled", l.Name("polled"), "it is used")
		time.Sleep(6 * time.Minute)
		l.Choose("broker", nil)
		require.Equal(t, 1, testutil.CollectAndCount(vec))
		time.Sleep(6 * time.Minute)
		l.Choose("broker", map[string]int64{"other-event": 1})
		require.Equal(t, 1, testutil.CollectAndCount(vec), "that of the other event")
	})
}

// A counter begins with 0, so that its first increase is seen.
func TestEndsAreCountedByState(t *testing.T) {
	t.Parallel()
	l := topevents.New()
	l.Choose("dispatcher", map[string]int64{"42": 1})
	ended := l.Collectors()[0]
	require.Equal(t, 3, testutil.CollectAndCount(ended))
	l.Ended("42", "SOLD", 2)
	require.NoError(t, testutil.CollectAndCompare(ended, strings.NewReader(`
# HELP millrace_room_ended_total Leases that ended by a tick, a result of the shop or a departure, by event and state (SOLD, ABANDONED, EXPIRED).
# TYPE millrace_room_ended_total counter
millrace_room_ended_total{event="42",state="ABANDONED"} 0
millrace_room_ended_total{event="42",state="EXPIRED"} 0
millrace_room_ended_total{event="42",state="SOLD"} 2
`)))
}
