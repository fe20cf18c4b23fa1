//go:build !faults

package failpoint_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/failpoint"
)

// Without the tag nothing can be armed, whatever the environment says.
func TestWithoutTheTagNothingHappens(t *testing.T) {
	t.Setenv("MILLRACE_FAULT_POINT", "after-insert:1")
	require.False(t, failpoint.Armed)
	require.Zero(t, testing.AllocsPerRun(100, func() { failpoint.Hit(failpoint.AfterInsert) }))
}

func TestPointsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := map[failpoint.Point]bool{}
	for _, p := range slices.Concat(failpoint.Points(), []failpoint.Point{failpoint.Told}, failpoint.EventPoints(), failpoint.RoomPoints(), failpoint.DrawPoints(), failpoint.ReplayPoints()) {
		require.NotEmpty(t, p)
		require.False(t, seen[p], "%s twice", p)
		seen[p] = true
	}
}
