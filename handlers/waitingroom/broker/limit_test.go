package broker

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
)

func TestABrokerForgetsUsersThatMaySendAllRequests(t *testing.T) {
	t.Parallel()
	b := New(Options{Config: Config{RequestsPerUser: 1}, Redis: redis.New()})
	require.Zero(t, b.limits.take("ann", time.Now().Add(-limitWindow)))
	require.Zero(t, b.limits.take("ben", time.Now().Add(time.Hour)))
	b.clean()
	require.Equal(t, []string{"ben"}, slices.Collect(maps.Keys(b.limits.users)))
}

func TestRequestsOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	l := limits{most: 10}
	for range 10 {
		require.Zero(t, l.take("ann", start))
	}
	wait := l.take("ann", start)
	require.Equal(t, time.Second, wait)
	require.Equal(t, wait, l.take("ann", start), "a refused request does not count")
	require.Zero(t, l.take("ben", start), "another user")
	require.Positive(t, l.take("ann", start.Add(wait-1)))
	require.Zero(t, l.take("ann", start.Add(wait)), "the time that was told is kept")
	require.Positive(t, l.take("ann", start.Add(wait)))
	l.clean(start.Add(limitWindow))
	require.Len(t, l.users, 1, "one that has not all requests again")
	l.clean(start.Add(limitWindow + wait))
	require.Empty(t, l.users)
	require.Zero(t, (&limits{}).take("ann", start), "without a limit")
}
