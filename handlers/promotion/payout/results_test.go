package payout

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A loop that does not end delays a stop only until the stop's context ends.
func TestAStopEndsWithItsContext(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	s := &Results{}
	release := make(chan struct{})
	require.NoError(t, s.loops.Start(t.Context(), func(context.Context) { <-release }))
	require.ErrorIs(t, s.Stop(over), context.Canceled)
	close(release)
	require.NoError(t, s.loops.Stop(t.Context()))
}
