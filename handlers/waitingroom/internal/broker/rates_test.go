package broker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
)

func TestABrokerForgetsUsersThatMaySendAllRequests(t *testing.T) {
	t.Parallel()
	b := New(Options{Config: Config{RequestsPerUser: 1}, Redis: redis.New()})
	require.Zero(t, b.rates.Take("ann", time.Now().Add(-ratesWindow)))
	require.Zero(t, b.rates.Take("ben", time.Now().Add(time.Hour)))
	b.clean()
	require.Equal(t, 1, b.rates.Len())
	require.Positive(t, b.rates.Take("ben", time.Now().Add(time.Hour)), "who has not all requests again is remembered")
}
