package console_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/console"
)

// acked is the counter of one route.
type acked uint64

func (a *acked) Work(string) pipeline.RouteWork { return pipeline.RouteWork{Acked: uint64(*a)} }

func TestARateNeedsTwoLooks(t *testing.T) {
	t.Parallel()
	var done acked = 5000 // before anybody looked
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	look := console.Rates(&done, "shop")
	after := func(d time.Duration, more acked) string {
		now, done = now.Add(d), done+more
		return look(now)
	}
	require.Equal(t, "unknown", after(0, 0))
	require.Equal(t, "unknown", after(100*time.Millisecond, 50), "too short a time for a rate")
	require.Equal(t, "1,500", after(900*time.Millisecond, 1450))
	require.Equal(t, "750", after(time.Second, 0), "over all of the time")
	require.Equal(t, "0.4", after(14*time.Second, 6), "what is older than the window does not count")
	require.Equal(t, "unknown", after(time.Hour, 1), "nobody looked for an hour")
	require.Equal(t, "0", after(10*time.Second, 0), "nothing is done")
}
