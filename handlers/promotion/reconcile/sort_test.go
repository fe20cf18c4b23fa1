package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// All statements about a target are one Entry, also when they are in several runs.
func TestStatementsAreTakenByTarget(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newSorter()
		s.Max = rapid.IntRange(1, 40).Draw(t, "max")
		want := map[int64]Entry{}
		for i, target := range rapid.SliceOfN(rapid.Int64Range(-3, 30), 0, 200).Draw(t, "targets") {
			l := statement{target: target, times: 1, value: -target, hash: uint64(rapid.IntRange(0, 1).Draw(t, "hash")), place: int64(i)}
			require.NoError(t, s.Add(l))
			e, known := want[target]
			if !known {
				e = Entry{Amount: l.value, hash: l.hash, place: l.place}
			}
			e.Times++
			e.mixed = e.mixed || e.hash != l.hash
			want[target] = e
		}
		all, err := s.Sorted()
		require.NoError(t, err)
		last := int64(-4)
		for {
			next, ok := all.Peek()
			if !ok {
				break
			}
			require.Greater(t, next.target, last)
			last = next.target
			none, err := take(all, next.target-1)
			require.NoError(t, err)
			require.Nil(t, none)
			e, err := take(all, next.target)
			require.NoError(t, err)
			require.Equal(t, want[last], *e)
			delete(want, last)
		}
		require.Empty(t, want)
		require.NoError(t, s.Close())
	})
}
