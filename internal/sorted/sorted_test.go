package sorted_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/internal/sorted"
)

func TestTheOrderIsThatOfTheStandardLibrary(t *testing.T) {
	t.Parallel()
	type item struct{ Key, Place int }
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOf(rapid.IntRange(0, 5)).Draw(t, "keys")
		all := make([]item, len(keys))
		for i, key := range keys {
			all[i] = item{key, i}
		}
		want := slices.Clone(all)
		compare := func(a, b item) int { return cmp.Compare(a.Key, b.Key) }
		slices.SortStableFunc(want, compare)
		sorted.By(all, compare)
		require.Equal(t, want, all)
	})
}
