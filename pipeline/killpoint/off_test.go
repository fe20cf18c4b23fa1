//go:build !faults

package killpoint_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/killpoint"
)

// Without the tag nothing can be armed, whatever the environment says.
func TestWithoutTheTagNothingHappens(t *testing.T) {
	t.Setenv("MILLRACE_FAULT_POINT", "after-insert:1")
	require.False(t, killpoint.Armed)
	require.Zero(t, testing.AllocsPerRun(100, func() { killpoint.Reach(killpoint.AfterInsert) }))
}

func TestPointsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := map[killpoint.Point]bool{}
	for _, p := range killpoint.Points() {
		require.NotEmpty(t, p)
		require.False(t, seen[p], "%s twice", p)
		seen[p] = true
	}
}
