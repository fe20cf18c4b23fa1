package room

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// crowd is a sale in a simulated time: users wait, and those that are promoted keep their slot for a
// while.
type crowd struct {
	users, arrive int // at the beginning, and each second
	seconds       int
	// keeps is how many seconds a user keeps the slot, and whether it buys. Without an end it expires.
	keeps func(rnd *rand.Rand) (seconds float64, buys bool)
}

// told is an estimate that a user was told.
type told struct {
	user     string
	at       int64
	from, to int64
	shown    bool
}

// estimates plays a crowd against the scripts. Every ten seconds it notes what each tenth user is
// told, and returns the shares that were shown and right, and the median width compared with the wait
// that was left. Users that were never promoted do not count.
func (c crowd) estimates(t *testing.T, s redistest.Server, concurrency int64) (shown, right, width float64) {
	t.Helper()
	r := newRig(t, s, 100_000)
	r.control(Change{Verb: Set, Concurrency: &concurrency})
	rnd := rand.New(rand.NewPCG(1, 2))
	next := 0
	enter := func() { r.enter(fmt.Sprint("u", next)); next++ }
	for range c.users {
		enter()
	}
	type slot struct {
		end  int64
		buys bool
		jti  string
	}
	slots, promoted, list := map[string]slot{}, map[string]int64{}, []told(nil)
	index := map[string]int64{}
	for now := range int64(c.seconds) {
		for range c.arrive {
			enter()
		}
		table := r.tick().Table
		users, err := r.client.ZRange(r.ctx, "ENTRY_LEASES:{"+r.event+"}", 0, -1).Result()
		require.NoError(t, err)
		var claims []Sign
		for _, u := range users {
			if _, found := promoted[u]; !found {
				claims = append(claims, Sign{User: u})
			}
		}
		if len(claims) > 0 {
			places, err := r.rooms.Claim(r.ctx, r.event, "broker-1", claims)
			require.NoError(t, err)
			for i, p := range places {
				seconds, buys := c.keeps(rnd)
				promoted[claims[i].User] = now
				slots[claims[i].User] = slot{now + int64(seconds), buys, p.JTI}
			}
		}
		for u, one := range slots {
			if one.end <= now {
				_, err := r.finish(u, one.jti, one.buys)
				require.NoError(t, err)
				delete(slots, u)
			}
		}
		if now%60 == 0 { // nobody is absent
			var signs []Sign
			for i := range next {
				if _, found := promoted[fmt.Sprint("u", i)]; !found {
					signs = append(signs, Sign{User: fmt.Sprint("u", i)})
				}
			}
			if len(signs) > 0 {
				r.seen(signs...)
			}
		}
		if now%10 != 5 {
			continue
		}
		waiting, err := r.client.ZRangeWithScores(r.ctx, "WAITING:{"+r.event+"}", 0, -1).Result()
		require.NoError(t, err)
		for rank := 0; rank < len(waiting); rank += 10 {
			user, ok := userOf(waiting[rank].Member.(string))
			require.True(t, ok)
			index[user] = int64(waiting[rank].Score)
			ahead, _ := table.Position(index[user])
			one := told{user: user, at: now}
			if wait := table.WaitSeconds(ahead); wait != nil {
				one.from, one.to, one.shown = wait[0], wait[1], true
			}
			list = append(list, one)
		}
	}
	var widths []float64
	n := 0
	for _, one := range list {
		at, found := promoted[one.user]
		if !found {
			continue
		}
		n++
		if !one.shown {
			continue
		}
		shown++
		left := at - one.at
		if one.from <= left && left <= one.to {
			right++
		}
		widths = append(widths, float64(one.to-one.from)/math.Max(1, float64(left)))
	}
	slices.Sort(widths)
	require.NotEmpty(t, widths)
	t.Logf("%d estimates, %.0f %% shown, %.0f %% of them right, median width %.0f %%", n, 100*shown/float64(n), 100*right/shown, 100*widths[len(widths)/2])
	return shown / float64(n), right / shown, widths[len(widths)/2]
}

// The expected wait is right in 80 % of the estimates, and its range is at most 40 % of the wait.
func TestTheExpectedWait(t *testing.T) {
	buys := func(from, to float64) func(*rand.Rand) (float64, bool) {
		return func(rnd *rand.Rand) (float64, bool) { return from + rnd.Float64()*(to-from), rnd.IntN(10) < 7 }
	}
	crowds := map[string]crowd{
		"a steady crowd": {users: 400, arrive: 1, seconds: 1500, keeps: func(rnd *rand.Rand) (float64, bool) {
			if rnd.IntN(8) == 0 {
				return 1e9, false // the time of the turn passes
			}
			return 20 + rnd.Float64()*160, rnd.IntN(10) < 7
		}},
		"a burst of first slots": {users: 500, seconds: 1200, keeps: buys(60, 200)},
		"nobody buys":            {users: 300, seconds: 1900, keeps: func(*rand.Rand) (float64, bool) { return 1e9, false }},
	}
	tier.Rest(t)
	s := redistest.Real(t, "redis") // ranks cost O(N) in the embedded one
	for name, c := range crowds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shown, right, width := c.estimates(t, s, 50)
			require.GreaterOrEqual(t, shown, 0.8)
			require.GreaterOrEqual(t, right, 0.8)
			require.LessOrEqual(t, width, 0.4)
		})
	}
}

func TestNoWaitIsExpectedWhileTheQueueStands(t *testing.T) {
	t.Parallel()
	table := Table{
		State: opened, Capacity: 100, Concurrency: 2, PerMinute: -1, Admitted: 2, TokenTime: 300_000, ReadyTime: 120_000,
		Ends: []int64{60_000, 240_000}, Flow: make([]float64, 2*parts+2),
	}
	require.NotNil(t, table.WaitSeconds(0))
	for name, change := range map[string]func(*Table){
		"on hold": func(t *Table) { t.State = paused }, "before the opening": func(t *Table) { t.State = scheduled },
		"sold out": func(t *Table) { t.Sold = 100 }, "without slots": func(t *Table) { t.Concurrency = 0 },
		"without promotions": func(t *Table) { t.PerMinute = 0 }, "after an outage": func(t *Table) { t.Hold = 1 },
		"more users ahead than seats": func(t *Table) { t.Sold = 98 - 1 },
	} {
		one := table
		change(&one)
		require.Nil(t, one.WaitSeconds(3), name)
	}
}

// When nobody has ended a turn early, slots become free with the ends of the leases.
func TestTheExpectedWaitFollowsTheEndsOfLeases(t *testing.T) {
	t.Parallel()
	table := Table{
		State: opened, Capacity: 1000, Concurrency: 2, PerMinute: -1, Admitted: 2, TokenTime: 300_000, ReadyTime: 120_000,
		Ends: []int64{60_000, 240_000}, Flow: make([]float64, 2*parts+2),
	}
	for i := range parts {
		table.Flow[parts+i] = 1e6 // seconds without an end
	}
	for ahead, want := range []int64{60, 240, 360, 540} {
		wait := table.WaitSeconds(int64(ahead))
		require.LessOrEqual(t, wait[0], want)
		require.GreaterOrEqual(t, wait[1], want)
		require.LessOrEqual(t, wait[1]-wait[0], 5+want/4)
	}
	extended := table // by a shop
	extended.Ends = []int64{60_000, 500_000}
	for ahead, want := range []int64{60, 360, 500, 660} {
		wait := extended.WaitSeconds(int64(ahead))
		require.LessOrEqual(t, wait[0], want)
		require.GreaterOrEqual(t, wait[1], want)
		require.LessOrEqual(t, wait[1]-wait[0], 5+want/4)
	}
	claimed := table // when their broker has claimed them, leases have all the time of a token
	claimed.Admitted, claimed.Ready, claimed.Ends = 0, 2, []int64{119_000, 120_000}
	require.Greater(t, claimed.WaitSeconds(0)[0], int64(240))
	table.Free, table.Admitted, table.Ends, table.PerMinute = 2, 0, nil, 1
	require.Equal(t, &[2]int64{104, 138}, table.WaitSeconds(1), "the rate is a limit, too")
}

// The embedded server keeps an array up to the highest number that is the key of a Lua table.
func TestATickNeedsLittleMemoryInTheEmbeddedServer(t *testing.T) {
	r := newRig(t, redistest.Mini(t), 3, func(o *Options) { o.ReadyTTL = time.Hour })
	r.enterAll(3)
	r.tick()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		r.tick()
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(50<<20))
}
