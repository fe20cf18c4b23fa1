package faults_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/internal/failpoint"
)

func lines(seed uint64) string { return linesOf(seed, faults.Matrix()) }

func linesOf(seed uint64, matrix []faults.Fault) string {
	var b strings.Builder
	for _, c := range faults.Plan(seed, matrix) {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

// A seed that was printed months ago must replay: the file is only changed with the matrix.
func TestTheSeedReplaysTheSchedule(t *testing.T) {
	t.Parallel()
	if os.Getenv("MILLRACE_FAULTS_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile("testdata/seed-1.txt", []byte(lines(1)), 0o600))
	}
	golden, err := os.ReadFile("testdata/seed-1.txt")
	require.NoError(t, err)
	require.Equal(t, string(golden), lines(1))
	require.Equal(t, lines(7), lines(7))
	require.NotEqual(t, lines(7), lines(8))
}

// Whatever the seed, the plan is the whole matrix, once, and its numbers can be carried out.
func TestThePlanIsTheWholeMatrix(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		wholeMatrix(t, seed, faults.Matrix(), 9)
		wholeMatrix(t, seed, faults.OfEffects(), 9)
	}
}

func wholeMatrix(t *testing.T, seed uint64, matrix []faults.Fault, all int) {
	t.Helper()
	names := map[string]bool{}
	groups := map[string]bool{}
	for i, c := range faults.Plan(seed, matrix) {
		require.False(t, names[c.Name], "%s twice", c.Name)
		names[c.Name] = true
		require.GreaterOrEqual(t, c.Targets, 300)
		require.LessOrEqual(t, c.Targets, 2_000)
		require.Less(t, c.Victim, faults.Instances)
		for _, a := range c.Arms {
			require.Positive(t, a.Nth)
			require.Less(t, a.Instance, faults.Instances)
		}
		if c.Pair {
			require.Len(t, c.Arms, 2)
			require.NotEqual(t, c.Arms[0].Instance, c.Arms[1].Instance)
			require.NotEqual(t, c.Arms[0].Point, c.Arms[1].Point)
		}
		groups[c.Group] = true
		if i == all-1 {
			require.Len(t, groups, all, "the groups take turns")
		}
	}
	require.Len(t, names, len(matrix))
}

// Every named point is lost alone.
func TestEveryPointIsInTheMatrix(t *testing.T) {
	t.Parallel()
	alone := func(matrix []faults.Fault) (points []failpoint.Point) {
		for _, f := range matrix {
			if len(f.Points) == 1 {
				points = append(points, f.Points[0])
			}
		}
		return points
	}
	require.ElementsMatch(t, failpoint.Points(), alone(faults.Matrix()))
	require.ElementsMatch(t, failpoint.EffectPoints(), alone(faults.OfEffects()))
}

// The faults of effects have names of their own only where promotions have no such fault.
func TestTheFaultsOfEffectsAreOfTheMatrix(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, f := range faults.Matrix() {
		names[f.Name] = true
	}
	own := 0
	for _, f := range faults.OfEffects() {
		require.Equal(t, faults.Effect, f.Of, f.Name)
		if !names[f.Name] {
			own++
		}
	}
	require.Equal(t, 2, own)
	require.Len(t, faults.OfEffects(), 10+6+33+2, "a name of the list is not in the matrix")
	require.Contains(t, linesOf(1, faults.OfEffects()), " seed=1 EFFECT targets=")
}
