package room

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// back lets a user enter with the index of an earlier connection.
func (r *rig) back(user string, cursor int64) Place {
	r.t.Helper()
	p, err := r.rooms.Enter(r.ctx, r.event, user, "broker-2", cursor)
	require.NoError(r.t, err)
	return p
}

// lose removes a waiting user from the room, as a failover does that loses the last writes.
func (r *rig) lose(user string) {
	r.t.Helper()
	k := keys(r.event)
	require.NoError(r.t, r.client.ZRem(r.ctx, k[0], fmt.Sprintf(`{"userId":%q}`, user)).Err())
	for _, hash := range []string{k[1], k[2], k[7]} {
		require.NoError(r.t, r.client.HDel(r.ctx, hash, user).Err())
	}
	require.NoError(r.t, r.client.ZRem(r.ctx, k[9], user).Err())
	require.NoError(r.t, r.client.ZRem(r.ctx, k[6], user).Err())
}

// W2, W5, W34
func TestAnAbsentUserComesBackToItsIndex(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		first, second := r.enter("u1"), r.enter("u2")
		r.enter("u3")
		r.pass(2 * time.Minute)
		require.Zero(t, r.tick().Removed, "a sign of life may be an interval old")
		r.seen(Sign{User: "u3"})
		r.pass(30 * time.Second)
		require.Equal(t, 2, r.tick().Removed)
		require.Equal(t, Place{Reason: "grace", How: "attached", Ahead: -1, Now: 1}, now1(r.seen(Sign{User: "u1"})[0]), "no index, no place")
		got := r.seen(Sign{User: "u1", Index: first.Index})[0]
		require.Equal(t, first.Index, got.Index)
		require.Equal(t, "restored", got.How)
		got = r.enter("u2")
		require.Equal(t, second.Index, got.Index)
		require.Equal(t, "restored", got.How)
		require.EqualValues(t, 1, got.Ahead)
	})
}

func now1(p Place) Place {
	p.Now = 1
	return p
}

func TestAnAbsenceIsOverAfterTenMinutes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		p := r.enter("u1")
		r.control(Change{Verb: Set})
		r.pass(3 * time.Minute)
		r.tick()
		r.pass(10 * time.Minute)
		r.tick()
		got := r.back("u1", p.Index)
		require.Empty(t, got.State)
		require.Equal(t, "grace", got.Reason)
		r.pass(time.Hour)
		r.tick()
		require.Zero(t, r.client.HLen(r.ctx, "WAITING_LEFT:{"+r.event+"}").Val())
		got = r.back("u1", p.Index)
		require.Empty(t, got.State, "the index is void when nothing is remembered")
		require.Equal(t, "unknown", got.Reason)
		require.Equal(t, "new", r.enter("u1").How)
	})
}

// W4, W29, W31
func TestAPlaceThatWasLeftIsNotRestored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		p := r.admitted("buyer")
		_, err := r.finish("buyer", p.JTI, true)
		require.NoError(t, err)
		require.Empty(t, r.seen(Sign{User: "buyer", Index: p.Index})[0].State, "a sign of a broker that missed the sale")
		require.Empty(t, r.seen(Sign{User: "buyer", Index: p.Index, JTI: p.JTI, Until: p.Until})[0].State)
		require.Equal(t, "sold", r.back("buyer", p.Index).Reason)

		r.control(Change{Verb: Set, Capacity: new(int64(2))})
		q := r.enter("leaver")
		r.lose("leaver")
		r.client.HSet(r.ctx, "WAITING_QUEUE_IDX:{"+r.event+"}", r.event, p.Index)
		r.leave("leaver")
		got := r.seen(Sign{User: "leaver", Index: q.Index})[0]
		require.Empty(t, got.State, "a failover lost the place before the user left")
		require.Equal(t, "left", got.Reason)
		require.Equal(t, "new", r.enter("leaver").How)
	})
}

// W30
func TestAnOldIndexStaysVoidAfterAnAbsence(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		first := r.enter("u1")
		r.leave("u1")
		second := r.enter("u1")
		require.Greater(t, second.Index, first.Index)
		r.pass(3 * time.Minute)
		require.Equal(t, 1, r.tick().Removed)
		require.Equal(t, second.Index, r.seen(Sign{User: "u1", Index: first.Index})[0].Index)
		require.Equal(t, second.Index, r.seen(Sign{User: "u1", Index: first.Index})[0].Index, "also when nothing is absent")
	})
}

// W35
func TestALostIndexComesBackToAUserThatEnteredAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		first := r.enter("u1")
		r.enter("u2")
		r.lose("u1")
		second := r.enter("u1")
		require.Greater(t, second.Index, first.Index)
		require.Equal(t, first.Index, r.seen(Sign{User: "u1", Index: first.Index})[0].Index)
		require.Zero(t, r.status("u1").Ahead)
		r.lose("u1")
		r.enter("u1")
		require.Equal(t, first.Index, r.back("u1", first.Index).Index)
		require.EqualValues(t, 2, r.client.ZCard(r.ctx, "WAITING:{"+r.event+"}").Val())
	})
}

// W37
func TestNoIndexIsGivenTwice(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		p := r.enter("u1")
		r.lose("u1")
		r.outage(time.Millisecond)
		r.client.HDel(r.ctx, "WAITING_QUEUE_IDX:{"+r.event+"}", r.event)
		require.Greater(t, r.enter("u2").Index, p.Index, "also without the last index")
		ahead := p.Index + 1000
		r.client.HSet(r.ctx, "WAITING_QUEUE_IDX:{"+r.event+"}", r.event, ahead)
		require.Equal(t, ahead+1, r.enter("u3").Index, "also when the clock is behind")
		r.seen(Sign{User: "u4", Index: ahead + 10})
		require.Equal(t, ahead+11, r.enter("u5").Index)
	})
}

func TestALostLeaseIsRestored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		p := r.admitted("u1")
		r.lose("u1")
		require.Equal(t, Waiting, r.back("u1", p.Index).State)
		got := r.seen(Sign{User: "u1", Index: p.Index, JTI: p.JTI, Until: p.Until})[0]
		require.Equal(t, Admitted, got.State)
		require.Equal(t, []any{p.JTI, p.Until, p.Index}, []any{got.JTI, got.Until, got.Index})
		require.EqualValues(t, 0, r.tick().Table.Waiting)

		r.lose("u1")
		got, err := r.finish("u1", p.JTI, true)
		require.NoError(t, err, "the sale of a lost lease takes a free slot")
		require.Equal(t, "late", got.How)
		_, err = r.finish("u2", "5-other", true)
		require.ErrorIs(t, err, ErrConflict)
		require.Empty(t, r.back("u1", p.Index).State)
	})
}

// A claim of the lost second: the broker has the end of the claimed lease.
func TestALostClaimIsRestored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		r.enter("u1")
		r.tick()
		record := r.client.HGet(r.ctx, "ENTRY_RECORD:{"+r.event+"}", "u1").Val()
		p := r.claim("u1")
		r.client.HSet(r.ctx, "ENTRY_RECORD:{"+r.event+"}", "u1", record)
		got := r.seen(Sign{User: "u1", Index: p.Index, JTI: p.JTI, Until: p.Until})[0]
		require.Equal(t, Admitted, got.State)
		require.Equal(t, p.Until, got.Until)
		r.client.HSet(r.ctx, "ENTRY_RECORD:{"+r.event+"}", "u1", record)
		got, err := r.rooms.Verify(r.ctx, r.event, "u1", p.JTI, "s")
		require.NoError(t, err, "the shop has the token, so the lease was claimed")
		require.Equal(t, Admitted, got.State)
	})
}

func TestACursorNeverEnters(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		require.Empty(t, r.back("u1", -1).State)
		p := r.enter("u2")
		require.Equal(t, "attached", r.back("u2", -1).How)
		r.lose("u2")
		require.Empty(t, r.back("u2", -1).State, "an index that is not signed restores nothing")
		require.Equal(t, "restored", r.back("u2", p.Index).How)
		require.Equal(t, "left", r.leave("u2").Reason)
		require.Equal(t, "left", r.back("u2", p.Index).Reason)
	})
}

func TestUserIDsOfAllCharacters(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 10)
		users := []string{`a"b`, `a\b`, `{x}:y`, "한글", "a/b", "'; DROP", `\"`, "1e3", "null", "🎟"}
		for _, user := range users {
			require.True(t, ValidUser(user))
			r.enter(user)
			require.Equal(t, "attached", r.enter(user).How)
			require.Equal(t, Waiting, r.seen(Sign{User: user})[0].State)
		}
		require.Equal(t, len(users), r.tick().Promoted)
		for _, user := range users {
			require.Equal(t, Admitted, r.claim(user).State)
			r.leave(user)
		}
		require.Zero(t, r.tick().Table.Admitted)
		for _, user := range []string{"", "a\nb", "\xff", string(make([]rune, 129))} {
			require.False(t, ValidUser(user))
		}
		require.False(t, ValidEvent("{42}"))
	})
}

func TestRemovalsDoNotStopPromotion(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		seen := "WAITING_SEEN:{" + r.event + "}"
		r.enter("absent")
		r.enter("u1")
		r.client.ZAdd(r.ctx, seen, z(1, "absent"))
		for i := range 500 {
			r.client.ZAdd(r.ctx, seen, z(0, fmt.Sprint("gone-", i)))
		}
		tick := r.tick()
		require.Equal(t, 1, tick.Promoted)
		require.Equal(t, 301, tick.Removed)
		require.True(t, tick.More)
		require.Equal(t, Ready, r.status("u1").State)
		require.Equal(t, "grace", r.status("absent").Reason, "an absent user takes no slot")
		require.Equal(t, 200, r.tick().Removed)
	})
}

func TestUsersThatAreNotValidAreSetAside(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 5)
		users := []string{strings.Repeat("é", 129), `a\nb`, `a\u0000`, strings.Repeat("é", 128)}
		for i, user := range users {
			r.client.ZAdd(r.ctx, "WAITING:{"+r.event+"}", z(float64(i+1), `{"userId":"`+user+`"}`))
		}
		tick := r.tick()
		require.Equal(t, 3, tick.Aside)
		require.Equal(t, 1, tick.Promoted)
		require.Equal(t, Ready, r.status(users[3]).State)
	})
}

func TestEventsThatAreNotValid(t *testing.T) {
	t.Parallel()
	for _, event := range []string{"", ".", "..", "a/b", "a b"} {
		require.False(t, ValidEvent(event), event)
	}
	require.True(t, ValidEvent("..."))
}

// A call reads the users of all its signs first. The second sign of a user meets what the first one
// has changed.
func TestSeveralSignsOfAUserInOneCall(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		index := r.enter("u1").Index
		r.enter("u2")
		require.Equal(t, 1, r.tick().Promoted)
		lease := r.claim("u1")
		r.lose("u1")
		r.lose("u2")
		signs := r.seen(
			Sign{User: "u1", Index: index}, Sign{User: "u1", Index: index, JTI: lease.JTI, Until: lease.Until}, Sign{User: "u1"},
			Sign{User: "u3", Index: index + 7}, Sign{User: "u3", Index: index + 5}, Sign{User: "u3", Index: index + 9},
		)
		require.Len(t, signs, 6)
		require.Equal(t, []State{Waiting, Admitted, Admitted}, []State{signs[0].State, signs[1].State, signs[2].State})
		require.Equal(t, []int64{index + 7, index + 5, index + 5}, []int64{signs[3].Index, signs[4].Index, signs[5].Index})
		require.Equal(t, []string{"u3"}, r.queue())
		require.Equal(t, []string{"u3"}, r.client.ZRange(r.ctx, keys(r.event)[9], 0, -1).Val())
		require.Equal(t, index+5, r.status("u3").Index)
		require.Equal(t, lease.JTI, r.status("u1").JTI)
	})
}
