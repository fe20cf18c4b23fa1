package redis

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Without claims, what an instance that has ended had read would never be handled: no other one has its name again.
func TestEntriesOfEndedInstancesAreAlwaysClaimed(t *testing.T) {
	t.Parallel()
	c := New().Settings().(*Config)
	require.NoError(t, c.Validate())
	c.ReclaimInterval = 0
	require.ErrorContains(t, c.Validate(), "reclaim_interval: must be > 0, got 0s")
}
