package rate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// use is a number of tokens at a time.
type use struct {
	at time.Time
	n  int
}

// excess returns how far the uses, which are in the order of time, exceed perSecond × (t + slack) + 1 in any window.
func excess(uses []use, perSecond float64, slack time.Duration) (worst float64) {
	worst = -1
	for i := range uses {
		sum := 0
		for j := i; j < len(uses); j++ {
			sum += uses[j].n
			t := uses[j].at.Sub(uses[i].at) + slack
			worst = max(worst, float64(sum)-perSecond*t.Seconds()-1)
		}
	}
	return worst
}

// Instances ask at random times, for random numbers of tokens, and use each at a random time of its life.
func TestNoWindowHasMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		perSecond := []float64{0.1, 0.9, 1, 3, 4, 7.3, 33, 200, 999.9, 5000}[random.IntN(10)]
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		start, tat := now, time.Time{}
		var uses []use
		for range 300 {
			now = now.Add(time.Duration(random.Int64N(int64(400 * time.Millisecond))))
			if random.IntN(20) == 0 {
				now = now.Add(time.Duration(random.Int64N(int64(20 * time.Second)))) // nothing was due
			}
			n, wait, next := Take(tat, now, perSecond, 1+random.IntN(2*perChunk(perSecond)))
			require.LessOrEqual(t, n, perChunk(perSecond))
			if n == 0 {
				require.Greater(t, wait, Ahead)
				require.Equal(t, tat, next)
				continue
			}
			tat = next
			uses = append(uses, use{now.Add(wait + time.Duration(random.Int64N(int64(Life)))), n})
		}
		require.NotEmpty(t, uses)
		slicesByTime(uses)
		require.LessOrEqual(t, excess(uses, perSecond, Chunk+Life), 1e-6, "seed %d, %g/s, %s", seed, perSecond, now.Sub(start))
	}
}

func slicesByTime(uses []use) {
	for i := 1; i < len(uses); i++ {
		for j := i; j > 0 && uses[j].at.Before(uses[j-1].at); j-- {
			uses[j], uses[j-1] = uses[j-1], uses[j]
		}
	}
}

// Instances that always have work get the whole limit between them, however many they are.
func TestNoTokenIsLostBetweenInstances(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []float64{0.5, 1, 7.3, 200, 5000} {
		for _, instances := range []int{1, 4, 30} {
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			const seconds = 100
			end, tat, total := now.Add(seconds*time.Second), time.Time{}, 0
			asks := make([]time.Time, instances) // when each asks next
			for i := range asks {
				asks[i] = now
			}
			for {
				who := 0
				for i := range asks {
					if asks[i].Before(asks[who]) {
						who = i
					}
				}
				if now = asks[who]; !now.Before(end) {
					break
				}
				n, wait, next := Take(tat, now, perSecond, 1000)
				if n > 0 {
					tat = next
				}
				if now.Add(wait).Before(end) {
					total += n
				}
				asks[who] = now.Add(wait + time.Millisecond)
			}
			require.InEpsilon(t, perSecond*seconds, total, 0.05, "%g/s, %d instances", perSecond, instances)
		}
	}
}

// A limit that was lower, or a clock that was put back, holds nobody up for longer than a limit of today could.
func TestATimeFarAheadIsCutOff(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tat := range []time.Time{now.Add(time.Hour), now.Add(Ahead)} {
		n, wait, next := Take(tat, now, 100, 25)
		require.Equal(t, 25, n)
		require.Equal(t, Ahead, wait)
		require.Equal(t, now.Add(Ahead+Chunk), next)
	}
	n, wait, _ := Take(now.Add(Ahead+Chunk), now, 100, 25)
	require.Zero(t, n, "others are ahead")
	require.Equal(t, Ahead+Chunk, wait)
}

func TestSlotsAreShared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		slots  int
		wanted []int
		got    []int
	}{
		{10, []int{4}, []int{4}},
		{10, []int{40}, []int{10}},
		{10, []int{1, 40}, []int{1, 9}},
		{10, []int{40, 40, 40}, []int{3, 3, 4}},
		{2, []int{9, 9, 9}, []int{0, 1, 1}},
		{10, []int{40, 2, 3}, []int{5, 2, 3}},
		{0, []int{1}, []int{0}},
	} {
		sum := 0
		for i, want := range c.got {
			require.Equal(t, want, Share(c.slots, c.wanted, i), "%+v", c)
			sum += want
		}
		require.LessOrEqual(t, sum, c.slots)
	}
}
