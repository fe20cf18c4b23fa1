package reconcile

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestSorterIsASort: with any number of runs, all that was added is returned in order, and nothing
// else.
func TestSorterIsASort(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := sorter{max: rapid.IntRange(1, 40).Draw(t, "max")}
		want := map[int64]Entry{}
		for i, target := range rapid.SliceOfN(rapid.Int64Range(1, 30), 0, 200).Draw(t, "targets") {
			l := statement{target: target, times: 1, value: target, hash: uint64(rapid.IntRange(0, 1).Draw(t, "hash")), place: int64(i)}
			require.NoError(t, s.add(l))
			e, known := want[target]
			if !known {
				e = Entry{Amount: l.value, hash: l.hash, place: l.place}
			}
			e.Times++
			e.mixed = e.mixed || e.hash != l.hash
			want[target] = e
		}
		b, err := s.sorted()
		require.NoError(t, err)
		last := int64(0)
		for {
			target, ok := b.peek()
			if !ok {
				break
			}
			require.Greater(t, target, last)
			last = target
			none, err := b.take(target - 1)
			require.NoError(t, err)
			require.Nil(t, none)
			e, err := b.take(target)
			require.NoError(t, err)
			require.Equal(t, want[target], *e)
			delete(want, target)
		}
		require.Empty(t, want)
		name := ""
		if s.file != nil {
			name = s.file.Name()
		}
		require.NoError(t, s.close())
		if name != "" {
			_, err := os.Stat(name)
			require.ErrorIs(t, err, os.ErrNotExist, "the file is removed")
		}
	})
}
