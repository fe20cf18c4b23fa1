package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// neighbours returns n groups in the lane of acme.
func neighbours(n int) (groups []string) {
	for i := 0; len(groups) < n; i++ {
		if name := fmt.Sprintf("g%d", i); laneOf(name) == laneOf("acme") {
			groups = append(groups, name)
		}
	}
	return groups
}

// untilDone claims the lane of acme and settles, until left effects of other groups are done. It returns how many effects
// were claimed for that, and with how many claims.
func untilDone(t *testing.T, l *Ledger, left, limit int) (effects, claims int) {
	t.Helper()
	for left > 0 {
		claimed, err := l.Claim(t.Context(), "invoice", int(laneOf("acme")), limit)
		require.NoError(t, err)
		require.NotEmpty(t, claimed, "%d are left", left)
		require.LessOrEqual(t, len(claimed), limit)
		ends := make([]End, len(claimed))
		for i, c := range claimed {
			if ends[i] = end(c, rules.Done); c.Group != "acme" {
				left--
			}
		}
		mustSettle(t, l, ends...)
		effects, claims = effects+len(claimed), claims+1
	}
	return effects, claims
}

// A group that comes after another one with much work shares the lane with it.
func TestAGroupIsNotBehindTheWorkOfAnother(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		small := neighbours(1)[0]
		mustAccept(t, l, records("acme", 2000)...)
		h.advance(time.Second)
		mustAccept(t, l, records(small, 100)...)
		effects, _ := untilDone(t, l, 100, 16)
		require.LessOrEqual(t, effects, 520, "a fifth of what is claimed is theirs")
	})
}

// A claim has as many effects of groups with one each as of a group with many.
func TestManySmallGroupsHaveTheirTurns(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 2000)...)
		h.advance(time.Second)
		for _, g := range neighbours(200) {
			mustAccept(t, l, records(g, 1)...)
		}
		effects, claims := untilDone(t, l, 200, 16)
		require.LessOrEqual(t, effects, 700)
		require.LessOrEqual(t, claims, effects/14)
	})
}

// A claim has all of the small groups that come before a large one.
func TestALargeGroupTakesNoTurnOfOthers(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		groups := neighbours(40)
		slices.Sort(groups)
		small, large := groups[:39], groups[39]
		mustAccept(t, l, records(large, 1500)...)
		for i := range 13 { // the numbers of rows are random
			h.advance(time.Second)
			for _, g := range small[3*i : 3*i+3] {
				mustAccept(t, l, records(g, 1)...)
			}
			claimed := map[string]bool{}
			for range 2 {
				all, err := l.Claim(t.Context(), "invoice", int(laneOf(large)), 16)
				require.NoError(t, err)
				require.Len(t, all, 16)
				for _, c := range all {
					claimed[c.Group] = true
					mustSettle(t, l, end(c, rules.Done))
				}
			}
			require.Len(t, claimed, 4, "one of two claims is a turn")
		}
	})
}

// Groups whose effects are not due, or whose calls run, take no turn from those that are.
func TestATurnIsOfWhatIsDue(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		groups := neighbours(60)
		for _, g := range groups[:59] {
			later := records(g, 2)
			later[0].NotBefore = l.clock(t).Add(time.Hour)
			mustAccept(t, l, later...)
		}
		called, err := l.Claim(t.Context(), "invoice", int(laneOf("acme")), 59)
		require.NoError(t, err)
		require.Len(t, called, 59)
		mustAccept(t, l, records("acme", 2000)...)
		h.advance(time.Second)
		mustAccept(t, l, records(groups[59], 10)...)
		effects, _ := untilDone(t, l, 10, 16)
		require.LessOrEqual(t, effects, 500)
	})
}

// A lane with one group is seldom asked for another one, which has its turn all the same.
func TestALaneWithOneGroup(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		lane := &l.kinds["invoice"].turns[laneOf("acme")]
		mustAccept(t, l, records("acme", 2000)...)
		turns := 0
		for range 40 {
			if lane.oldest == 0 {
				turns++
			}
			claimed, err := l.Claim(t.Context(), "invoice", int(laneOf("acme")), 2)
			require.NoError(t, err)
			require.Len(t, claimed, 2)
		}
		require.Equal(t, 3, turns)
		h.advance(time.Second)
		small := neighbours(1)[0]
		mustAccept(t, l, records(small, 20)...)
		effects, _ := untilDone(t, l, 20, 16)
		require.LessOrEqual(t, effects, (oldestAlone+1+5)*16)
	})
}
