package reconcile

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type numbered struct {
	key, place int64
	text       string
}

func sorterOf(most int) Sorter[numbered] {
	return Sorter[numbered]{
		Max:     most,
		Compare: func(a, b numbered) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.place, b.place)) },
		Append: func(to []byte, n numbered) []byte {
			return appendText(binary.AppendVarint(binary.AppendVarint(to, n.key), n.place), n.text)
		},
		Read: func(from *bufio.Reader) (n numbered, err error) {
			if n.key, err = binary.ReadVarint(from); err != nil {
				return n, err
			}
			n.place, err = binary.ReadVarint(from)
			if err == nil {
				n.text, err = readText(from)
			}
			return n, whole(err)
		},
	}
}

// With any number of runs, all that was added is returned in order, and nothing else.
func TestSorterIsASort(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := sorterOf(rapid.IntRange(1, 40).Draw(t, "max"))
		var want []numbered
		for i, key := range rapid.SliceOfN(rapid.Int64Range(-30, 30), 0, 200).Draw(t, "keys") {
			n := numbered{key, int64(i), rapid.StringN(0, 9, 99).Draw(t, "text")}
			require.NoError(t, s.Add(n))
			want = append(want, n)
		}
		slices.SortFunc(want, s.Compare)
		all, err := s.Sorted()
		require.NoError(t, err)
		var got []numbered
		for {
			first, ok := all.Peek()
			if !ok {
				break
			}
			require.NoError(t, all.Take(func(n numbered) bool { return n.key == first.key-1 }, func(numbered) { t.Fatal("another key") }))
			before := len(got)
			require.NoError(t, all.Take(func(n numbered) bool { return n.key == first.key }, func(n numbered) { got = append(got, n) }))
			require.Greater(t, len(got), before)
		}
		require.Equal(t, want, got)
		name := ""
		if s.file != nil {
			name = s.file.Name()
		}
		require.NoError(t, s.Close())
		if name != "" {
			_, err := os.Stat(name)
			require.ErrorIs(t, err, os.ErrNotExist, "the file is removed")
		}
	})
}

// A file that ends within an item, such as on a disk that was full, is no end of the items.
func TestATornRunIsAnError(t *testing.T) {
	t.Parallel()
	for cut := range int64(7) { // an item has 7 bytes
		s := sorterOf(1)
		for i := range int64(3) {
			require.NoError(t, s.Add(numbered{i, i, "text"}))
		}
		require.NoError(t, s.file.Truncate(s.ends[1]-cut))
		all, err := s.Sorted()
		if err == nil {
			err = all.Take(func(numbered) bool { return true }, func(numbered) {})
		}
		if cut == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes are missing", cut)
		}
		require.NoError(t, s.Close())
	}
}
