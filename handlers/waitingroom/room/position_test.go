package room

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// queues are ways in which users arrive: each returns the next index.
var queues = map[string]func(rnd *rand.Rand, last int64) int64{
	"steady":   func(rnd *rand.Rand, last int64) int64 { return last + 1 + int64(rnd.ExpFloat64()*500) },
	"all once": func(_ *rand.Rand, last int64) int64 { return last + 1 },
	"in bursts": func(rnd *rand.Rand, last int64) int64 {
		if rnd.IntN(1000) == 0 {
			return last + 60_000_000
		}
		return last + 1 + rnd.Int64N(20)
	},
}

// fill writes a queue without scripts, and returns the indexes.
func (r *rig) fill(n int, seed uint64, next func(rnd *rand.Rand, last int64) int64) []int64 {
	r.t.Helper()
	rnd, last := rand.New(rand.NewPCG(seed, 1)), int64(1_800_000_000_000_000)
	indexes, part := make([]int64, n), []goredis.Z{}
	for i := range indexes {
		last = next(rnd, last)
		indexes[i] = last
		part = append(part, goredis.Z{Score: float64(last), Member: fmt.Sprintf(`{"userId":"u%d"}`, i)})
		if len(part) == 10_000 || i == n-1 {
			require.NoError(r.t, r.client.ZAdd(r.ctx, "WAITING:{"+r.event+"}", part...).Err())
			part = part[:0]
		}
	}
	return indexes
}

// Positions are compared with the ranks of a queue. The first 100 are exact.
func TestPositionsFollowTheRanks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		n := 20_000
		switch {
		case s.Mini != nil:
			n = 4_000 // its ranks cost O(N)
		case tier.IsRest(t):
			n = 1_000_000
		}
		for name, next := range queues {
			t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
				r := newRig(t, s, -1)
				indexes := r.fill(n, 1, next)
				table := r.tick().Table
				require.Equal(t, int64(n), table.Waiting)
				var sum, worst float64
				for rank, index := range indexes {
					ahead, exact := table.Position(index)
					if rank < 100 {
						require.True(t, exact)
					}
					if exact {
						require.Equal(t, int64(rank), ahead)
						continue
					}
					off := float64(max(ahead-int64(rank), int64(rank)-ahead)) / float64(rank+1)
					sum, worst = sum+off, max(worst, off)
				}
				t.Logf("%d users, error %.4f %% mean, %.2f %% worst", n, 100*sum/float64(n), 100*worst)
				most := 0.05 // the distance of two ranks in the table
				if name == "steady" {
					most = 0.011
					require.Less(t, sum/float64(n), 0.2/math.Sqrt(float64(n)))
				}
				require.Less(t, worst, most)
			})
		}
	})
}

// A position is between the ranks of its neighbours in the table, so an earlier index never has a
// greater one.
func TestPositionsKeepTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := &Table{}
		var index, rank int64 = 1_800_000_000_000_000, 0
		for range rapid.IntRange(0, 30).Draw(t, "ranks") {
			table.Ranks = append(table.Ranks, [2]int64{index, rank})
			by := rapid.Int64Range(1, 1000).Draw(t, "users")
			rank += by
			index += by * rapid.Int64Range(1, 1_000_000).Draw(t, "distance")
			table.Waiting = table.Ranks[len(table.Ranks)-1][1] + 1
		}
		a := rapid.Int64Range(1_799_999_999_999_999, index+10).Draw(t, "index")
		b := rapid.Int64Range(a, index+10).Draw(t, "later index")
		first, _ := table.Position(a)
		second, _ := table.Position(b)
		if first > second || first < 0 || second > table.Waiting {
			t.Fatalf("%d has %d before it, and %d has %d of %d", a, first, b, second, table.Waiting)
		}
	})
}
