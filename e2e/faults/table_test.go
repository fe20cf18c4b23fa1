package faults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/faults"
)

func TestTheTableSaysWhatWasTried(t *testing.T) {
	t.Parallel()
	var results []faults.Result
	for _, seed := range []uint64{2, 1} {
		for _, c := range faults.Plan(seed, faults.Matrix())[:9] {
			results = append(results, faults.Result{Case: c, Took: time.Second})
		}
	}
	require.Contains(t, faults.Table(results), "18 cases with")
	require.Contains(t, faults.Table(results), "seeds 1 2, in 18s: every invariant held after each.")
	results[3].Broken = "one charge per target"
	table := faults.Table(results)
	require.Contains(t, table, "an invariant was broken after 1")
	require.Contains(t, table, "**broken:** one charge per target (seed 2)")
}

func TestTheTableHasItsPlace(t *testing.T) {
	t.Parallel()
	const first, last = "<!-- effect-faults:begin -->\n", "<!-- effect-faults:end -->\n"
	text, err := faults.Replace("a\n"+first+"old\n"+last+"b\n", faults.OfKinds, "new\n")
	require.NoError(t, err)
	require.Equal(t, "a\n"+first+"new\n"+last+"b\n", text)
	_, err = faults.Replace(text, faults.OfPromotions, "new")
	require.Error(t, err)
}
