package room

import (
	"math"
	"slices"
)

// Ordered reports whether an index has a position. In a pre-queue no index has one. After the draw
// those from before it have none: a sign of life returns the new index.
func (t *Table) Ordered(index int64) bool {
	return t.State != PreQueue && t.State != Drawing && index > t.Cut
}

// Position returns how many users wait before an index. It is exact for the first 100 indexes, and
// interpolated behind them.
func (t *Table) Position(index int64) (ahead int64, exact bool) {
	i, found := slices.BinarySearchFunc(t.Ranks, index, func(r [2]int64, index int64) int {
		switch {
		case r[0] < index:
			return -1
		case r[0] > index:
			return 1
		}
		return 0
	})
	switch {
	case found:
		return t.Ranks[i][1], true
	case i == 0:
		return 0, len(t.Ranks) > 0
	case i == len(t.Ranks):
		return t.Waiting, false
	}
	low, high := t.Ranks[i-1], t.Ranks[i]
	if high[1] == low[1]+1 { // no user is between them
		return high[1], true
	}
	share := float64(index-low[0]) / float64(high[0]-low[0])
	return low[1] + max(1, int64(math.Round(share*float64(high[1]-low[1])))), false
}

// Last returns the index of the last user of the table, or 0.
func (t *Table) Last() int64 {
	if len(t.Ranks) == 0 {
		return 0
	}
	return t.Ranks[len(t.Ranks)-1][0]
}
