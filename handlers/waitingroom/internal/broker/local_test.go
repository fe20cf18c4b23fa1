package broker

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

func connectedUser(id string, p room.Place) *user {
	return &user{id: id, place: p, request: 1, answered: start, conns: map[*conn]struct{}{{}: {}}}
}

// W40: an answer counts only at the index of its request, and only when no later request was
// answered.
func TestAnswersThatNoLongerCount(t *testing.T) {
	t.Parallel()
	u := connectedUser("u", waiting(1))
	lease := room.Place{State: room.Admitted, Index: 1, JTI: "a"}
	require.True(t, u.accept(lease, 1, 3, start))
	require.False(t, u.accept(waiting(1), 1, 2, start), "an earlier request")
	require.Equal(t, lease, u.place)
	u.place = waiting(7)
	require.False(t, u.accept(lease, 1, 4, start), "the user has another place")
	require.True(t, u.accept(waiting(5), 7, 5, start), "the place was restored at a lower index")
	require.EqualValues(t, 5, u.place.Index)
}

// The clock of the process counts only from the last answer.
func TestTheServersTimeGoesOnAfterAnAnswer(t *testing.T) {
	t.Parallel()
	u := connectedUser("u", room.Place{Now: 1_000})
	require.Equal(t, time.UnixMilli(1_000), u.serverTime(start))
	require.Equal(t, time.UnixMilli(4_000), u.serverTime(start.Add(3*time.Second)))
}

// W32: the server may no longer remember that the user has left.
func TestSignsAfterALongSilenceHaveNoIndex(t *testing.T) {
	t.Parallel()
	u := connectedUser("u", room.Place{State: room.Admitted, Index: 1, JTI: "a", Until: 9})
	require.Equal(t, room.Sign{User: "u", Index: 1, JTI: "a", Until: 9}, u.sign(start.Add(dropAfter-1)))
	require.Equal(t, room.Sign{User: "u"}, u.sign(start.Add(dropAfter)))
	u.place = waiting(1)
	clear(u.conns)
	require.Equal(t, room.Sign{User: "u", Index: 1, Gone: true}, u.sign(start))
}

// W39: a lease that a sign has shown is neither shown nor restored before its claim has an answer.
func TestALeaseThatReplicasMayNotHaveIsClaimed(t *testing.T) {
	t.Parallel()
	u := connectedUser("u", waiting(1))
	lease := room.Place{State: room.Admitted, Index: 1, JTI: "a", Until: 9}
	unsure := lease
	unsure.Unreplicated = true
	v := view{lowest: &u.lowest}
	shown := func() (names []string) {
		for _, s := range v.update(u.place, nil, start) {
			names = append(names, s.name)
		}
		return names
	}
	require.True(t, u.accept(unsure, 1, 2, start))
	require.Equal(t, []string{eventConnected}, shown())
	require.True(t, u.claimDue(nil, start))
	require.Equal(t, room.Sign{User: "u", Index: 1}, u.sign(start))
	require.True(t, u.accept(lease, 1, 3, start))
	require.Equal(t, []string{eventPromoted}, shown())
	require.True(t, u.accept(unsure, 1, 4, start), "a later sign")
	require.False(t, u.claimDue(nil, start))
	require.Equal(t, "a", u.sign(start).JTI)
	unsure.Until++
	require.True(t, u.accept(unsure, 1, 5, start), "an outage made the lease longer")
	require.Empty(t, shown())
	require.True(t, u.claimDue(nil, start))
}

// With absent: release, the tick frees the slot of a user whose last broker has reported the end of
// the connection, after one interval. The sign of the next broker comes earlier.
func TestTheFirstSignComesWithinHalfAnInterval(t *testing.T) {
	t.Parallel()
	for range 50 {
		u := &user{reported: true}
		u.connect(start, time.Hour)
		require.False(t, u.reported)
		require.WithinRange(t, u.signAt, start, start.Add(time.Hour/2))
	}
}

func TestUsersWithoutAClaimedLease(t *testing.T) {
	t.Parallel()
	table := &room.Table{Served: 5}
	for _, tt := range []struct {
		place room.Place
		table *room.Table
		want  bool
	}{
		{waiting(5), table, true},
		{waiting(6), table, false},
		{waiting(5), nil, false},
		{room.Place{State: room.Ready, Index: 9}, nil, true},
		{room.Place{State: room.Admitted, Index: 5}, table, false},
		{room.Place{State: room.Admitted, Index: 5, Unreplicated: true}, table, true},
		{room.Place{}, table, false},
		{waiting(5), &room.Table{Served: 5, Cut: 5}, false}, // a sign of life is due
		{waiting(6), &room.Table{Served: 6, Cut: 5}, true},
	} {
		u := connectedUser("u", tt.place)
		require.Equal(t, tt.want, u.claimDue(tt.table, start), "%v", tt)
		u.claimAt = start.Add(1)
		require.False(t, u.claimDue(tt.table, start), "claimed a moment ago")
		clear(u.conns)
		require.False(t, u.claimDue(tt.table, start.Add(time.Hour)), "without a connection")
	}
}

// W38: the signs of all users are due after a recovery, after an outage, and when the room closes.
func TestTablesThatMakeAllSignsDue(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	open := func(change func(*room.Table)) *room.Table {
		table := &room.Table{AsOf: start.UnixMilli(), Epoch: 1, State: "open"}
		if change != nil {
			change(table)
		}
		return table
	}
	for _, tt := range []struct {
		name   string
		tables []*room.Table // nil: the read failed
		passed time.Duration // between two of them
		want   int
	}{
		{"the first table", []*room.Table{open(nil)}, 0, 1},
		{"no change", []*room.Table{open(nil), open(nil)}, 2 * minute, 0},
		{"recovery", []*room.Table{open(nil), open(func(t *room.Table) { t.Epoch = 2 })}, 0, 1},
		{"outage", []*room.Table{open(nil), nil, open(nil)}, minute / 2, 1},
		{"a read that failed", []*room.Table{open(nil), nil, open(nil)}, minute/2 - 1, 0},
		{"recovery after a read that failed", []*room.Table{open(nil), nil, open(func(t *room.Table) { t.Epoch = 2 })}, 0, 1},
		{"pause", []*room.Table{open(nil), open(func(t *room.Table) { t.State = "paused" })}, 0, 0},
		{"end", []*room.Table{open(nil), open(func(t *room.Table) { t.State = "closed" })}, 0, 1},
	} {
		u := connectedUser("u", waiting(1))
		l := &eventUsers{users: map[string]*user{"u": u}}
		now := start
		for i, table := range tt.tables {
			if i < 2 {
				u.signAt = start.Add(time.Hour)
			}
			l.update(table, table == nil, now, minute)
			now = now.Add(tt.passed)
		}
		require.Len(t, l.dueSigns(now), tt.want, tt.name)
	}
}

// The sign of a user whose lease should have ended is due, by the clock of the server.
func TestALeaseThatShouldHaveEnded(t *testing.T) {
	t.Parallel()
	u := connectedUser("u", room.Place{State: room.Admitted, Index: 1, JTI: "a", Until: start.UnixMilli() + 60_000})
	l := &eventUsers{users: map[string]*user{"u": u}}
	l.update(&room.Table{AsOf: start.UnixMilli()}, false, start.Add(-time.Hour), time.Minute)
	u.signAt, u.answered = start.Add(time.Hour), start.Add(-time.Minute)
	require.Len(t, l.dueSigns(start), 1, "the clock of the server is an hour ahead")
	l.update(&room.Table{AsOf: start.UnixMilli()}, false, start, time.Minute)
	require.Empty(t, l.dueSigns(start.Add(time.Minute)))
	require.Len(t, l.dueSigns(start.Add(time.Minute+time.Millisecond)), 1)
	u.answered = start.Add(time.Minute)
	require.Empty(t, l.dueSigns(start.Add(time.Minute+overdue-1)), "not more often")
}

// Users whose signs were due at once do not stay in step. No sign is later than the interval.
func TestSignsSpread(t *testing.T) {
	t.Parallel()
	moments := map[time.Time]bool{}
	for range 100 {
		u := connectedUser("u", waiting(1))
		u.plan(start, time.Minute)
		require.Less(t, start.Add(44*time.Second), u.signAt)
		require.LessOrEqual(t, u.signAt, start.Add(time.Minute))
		moments[u.signAt] = true
		u.place.Until = 1
		u.plan(start, time.Minute)
		require.LessOrEqual(t, u.signAt, start.Add(30*time.Second), "with a lease")
	}
	require.Greater(t, len(moments), 50)
}

func gone(u *user) *user {
	clear(u.conns)
	return u
}

// A user may have left and come back before the answer to the last sign arrives.
func TestALateAnswerToASignOfAUserWhoIsGone(t *testing.T) {
	t.Parallel()
	b := &Broker{metrics: newMetrics(&Broker{opts: Options{Labels: topevents.New()}})}
	former, now := gone(connectedUser("u", waiting(1))), connectedUser("u", waiting(2))
	l := &eventUsers{users: map[string]*user{"u": former}}
	r := newBatch(1, []*user{former}, start)
	require.True(t, r.signs[0].Gone)
	l.users["u"] = now
	b.signed(l, r, []room.Place{waiting(1)})
	require.Same(t, now, l.users["u"])
}

// A user who came back and left again before the answer is reported again.
func TestAUserWhoWasBackForAMomentIsReportedAgain(t *testing.T) {
	t.Parallel()
	b := &Broker{metrics: newMetrics(&Broker{opts: Options{Labels: topevents.New()}})}
	u := gone(connectedUser("u", waiting(1)))
	l := &eventUsers{users: map[string]*user{"u": u}}
	r := newBatch(2, []*user{u}, start)
	u.entered(waiting(1), 3, start)
	b.signed(l, r, []room.Place{waiting(1)})
	due := l.dueSigns(time.Now())
	require.Len(t, due, 1)
	require.True(t, due[0].sign(start).Gone)
}

// A user who connects again soon sees no higher position than before.
func TestAUserWithoutConnectionsIsKeptForAWhile(t *testing.T) {
	t.Parallel()
	b := &Broker{metrics: newMetrics(&Broker{opts: Options{Labels: topevents.New()}})}
	u := gone(connectedUser("u", waiting(1)))
	l := &eventUsers{users: map[string]*user{"u": u}}
	b.signed(l, newBatch(1, []*user{u}, start), []room.Place{waiting(1)})
	require.Same(t, u, l.users["u"])
	require.Empty(t, l.dueSigns(u.signAt.Add(-1)))
	require.Contains(t, l.users, "u")
	require.Empty(t, l.dueSigns(u.signAt), "it was reported")
	require.Empty(t, l.users)
}

// A sign that is sent after a claim may be executed before it. The answer to the claim is then
// ignored, and the next broadcast claims again.
func TestAClaimIsRepeatedAfterASignThatOvertookIt(t *testing.T) {
	t.Parallel()
	u := connectedUser("u", waiting(1))
	u.claimAt = start.Add(claimAgain)
	ready := room.Place{State: room.Ready, Index: 1, JTI: "a"}
	require.True(t, u.accept(ready, 1, 3, start))
	require.False(t, u.accept(room.Place{State: room.Admitted, Index: 1, JTI: "a"}, 1, 2, start))
	require.True(t, u.claimDue(nil, start))
}

// A GET and a DELETE may be executed in another order than they were sent or answered. The sign
// that is due then shows the place.
func TestEnteringWhileADeleteIsOnItsWay(t *testing.T) {
	t.Parallel()
	end := room.Place{Reason: "left", Now: 100}
	at := func(now int64) room.Place {
		p := waiting(2)
		p.Now = now
		return p
	}
	for _, tt := range []struct {
		name  string
		now   int64
		lives bool
	}{{"entered after the end", 101, true}, {"in the same millisecond", 100, true}, {"entered before the end", 99, false}} {
		first := connectedUser("u", waiting(1))
		require.True(t, first.left(end, 6, start))
		first.signAt = start.Add(time.Hour)
		first.entered(at(tt.now), 5, start)
		require.Equal(t, tt.lives, first.place.State == room.Waiting, tt.name)
		require.Equal(t, tt.lives, first.signAt.Equal(start), tt.name)

		second := connectedUser("u", at(tt.now))
		second.signAt = start.Add(time.Hour)
		require.Equal(t, !tt.lives, second.left(end, 6, start), tt.name)
		require.Equal(t, tt.lives, second.signAt.Equal(start), tt.name)
	}
	u := connectedUser("u", at(100))
	u.request = 9
	u.entered(room.Place{State: room.Waiting, Index: 1, Now: 99}, 8, start)
	require.EqualValues(t, 2, u.place.Index, "an older answer")
	u.entered(room.Place{State: room.Waiting, Index: 1, Now: 99}, 10, start)
	require.EqualValues(t, 1, u.place.Index, "the clock of the server went back")
}

// Refused users are kept once each, and not without a limit.
func TestRefusedUsersAreLimited(t *testing.T) {
	t.Parallel()
	var f refusals
	for range 2 {
		for i := range maxRefused + 5 {
			f.keepUser("event", strconv.Itoa(i))
			f.keepUser("other", "0")
		}
	}
	got := f.takeUsers()
	require.Len(t, got["event"], maxRefused-1)
	require.Len(t, got["other"], 1)
	f.keepUser("event", "again")
	require.Nil(t, f.takeUsers(), "the last ones are in progress")
	f.done()
	require.Len(t, f.takeUsers()["event"], 1)
}
