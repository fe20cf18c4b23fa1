package web_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/web"
)

func TestRates(t *testing.T) {
	t.Parallel()
	start, window := time.Unix(1_700_000_000, 0), 10*time.Second
	r := web.Rates{Most: 10, Window: window}
	for range 10 {
		require.Zero(t, r.Take("ann", start))
	}
	wait := r.Take("ann", start)
	require.Equal(t, time.Second, wait)
	require.Equal(t, wait, r.Take("ann", start), "a refused request does not count")
	require.Zero(t, r.Take("ben", start), "another key")
	require.Positive(t, r.Take("ann", start.Add(wait-1)))
	require.Zero(t, r.Take("ann", start.Add(wait)), "the time that was told is kept")
	require.Positive(t, r.Take("ann", start.Add(wait)))
	r.Clean(start.Add(window))
	require.Equal(t, 1, r.Len(), "one that has not all requests again")
	r.Clean(start.Add(window + wait))
	require.Zero(t, r.Len())
	require.Zero(t, (&web.Rates{}).Take("ann", start), "without a limit")
}

func TestRatesOverTime(t *testing.T) {
	t.Parallel()
	r := web.Rates{Most: 2, Window: time.Minute}
	var waits []time.Duration
	for _, second := range []int64{0, 0, 0, 20, 30, 30, 120, 120, 120} {
		waits = append(waits, r.Take("ann", time.Unix(second, 0)))
	}
	require.Equal(t, []time.Duration{0, 0, 30 * time.Second, 10 * time.Second, 0, 30 * time.Second, 0, 0, 30 * time.Second}, waits)
}
