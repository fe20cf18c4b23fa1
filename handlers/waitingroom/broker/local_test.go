package broker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
		{room.Place{}, table, false},
	} {
		u := connectedUser("u", tt.place)
		require.Equal(t, tt.want, u.wantsClaim(tt.table, start), "%v", tt)
		u.claimAt = start.Add(1)
		require.False(t, u.wantsClaim(tt.table, start), "claimed a moment ago")
		clear(u.conns)
		require.False(t, u.wantsClaim(tt.table, start.Add(time.Hour)), "without a connection")
	}
}

// W38: the signs of all users are due after a recovery, after an outage, and when the room closes.
func TestTablesThatMakeAllSignsDue(t *testing.T) {
	t.Parallel()
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
		want   int
	}{
		{"the first table", []*room.Table{open(nil)}, 0},
		{"no change", []*room.Table{open(nil), open(nil)}, 0},
		{"recovery", []*room.Table{open(nil), open(func(t *room.Table) { t.Epoch = 2 })}, 1},
		{"outage", []*room.Table{open(nil), nil, open(nil)}, 1},
		{"pause", []*room.Table{open(nil), open(func(t *room.Table) { t.State = "paused" })}, 0},
		{"end", []*room.Table{open(nil), open(func(t *room.Table) { t.State = "closed" })}, 1},
	} {
		u := connectedUser("u", waiting(1))
		u.signAt = start.Add(time.Minute)
		l := &local{users: map[string]*user{"u": u}}
		for _, table := range tt.tables {
			l.update(table, table == nil, start)
		}
		require.Len(t, l.dueSigns(start), tt.want, tt.name)
	}
}

// The sign of a user whose lease should have ended is due, by the clock of the server.
func TestALeaseThatShouldHaveEnded(t *testing.T) {
	t.Parallel()
	u := connectedUser("u", room.Place{State: room.Admitted, Index: 1, JTI: "a", Until: start.UnixMilli() + 60_000})
	u.signAt, u.answered = start.Add(time.Hour), start.Add(-time.Minute)
	l := &local{users: map[string]*user{"u": u}}
	l.update(&room.Table{AsOf: start.UnixMilli()}, false, start.Add(-time.Hour))
	require.Len(t, l.dueSigns(start), 1, "the clock of the server is an hour ahead")
	l.update(&room.Table{AsOf: start.UnixMilli()}, false, start)
	require.Empty(t, l.dueSigns(start.Add(time.Minute)))
	require.Len(t, l.dueSigns(start.Add(time.Minute+time.Millisecond)), 1)
	u.answered = start.Add(time.Minute)
	require.Empty(t, l.dueSigns(start.Add(time.Minute+overdue-1)), "not more often")
}
