package room

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The list of rooms comes in parts. Each has a bounded number of names, and all of them together have each room.
func TestTheListOfRoomsComesInParts(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		const rooms = 3*PageSize + 7
		var names []any
		for i := range rooms {
			names = append(names, fmt.Sprintf("%s-%d", r.event, i))
		}
		require.NoError(t, r.client.SAdd(r.ctx, roomsKey, names...).Err())
		t.Cleanup(func() { r.client.SRem(context.Background(), roomsKey, names...) })
		var found []string
		after, parts := "", 0
		for {
			events, next, err := r.rooms.EventsAfter(r.ctx, after)
			require.NoError(t, err)
			require.LessOrEqual(t, len(events), PageSize)
			require.True(t, slices.IsSorted(events))
			// It may read a few more names than a part has, which are in the next one.
			require.NotRegexp(t, `\.[2-9]\d\d$`, next, "the server has not read all names for one part")
			found = append(found, events...)
			parts++
			if after = next; after == "" {
				break
			}
		}
		require.Greater(t, parts, 3)
		for _, name := range names {
			require.Contains(t, found, name)
		}
		for _, wrong := range []string{"x", "1", "1.x", "1.-1", ".5", "-1.0"} {
			_, _, err := r.rooms.EventsAfter(r.ctx, wrong)
			require.ErrorIs(t, err, ErrPlace, wrong)
		}
	})
}

// The server answers with all names of a small set, which are more than a part has.
func TestAPartOfASmallSet(t *testing.T) {
	t.Parallel()
	var all []string
	for i := range 2*PageSize + 50 {
		all = append(all, fmt.Sprintf("%03d", i))
	}
	one, next := part(slices.Clone(all), "0", "0", 0)
	require.Equal(t, all[:PageSize], one)
	require.Equal(t, "0.100", next)
	two, next := part(slices.Clone(all), "0", "0", PageSize)
	require.Equal(t, all[PageSize:2*PageSize], two)
	require.Equal(t, "0.200", next)
	three, next := part(slices.Clone(all), "7", "12", 2*PageSize)
	require.Equal(t, all[2*PageSize:], three)
	require.Equal(t, "12.0", next)
	none, next := part(slices.Clone(all), "0", "0", 1000)
	require.Empty(t, none)
	require.Empty(t, next)
}

// Rooms are described together, as each of them alone, also beside one that does not exist.
func TestStatusesOfSeveralRooms(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		one, other := newRig(t, s, 5), newRig(t, s, 7)
		one.enterAll(2)
		list := one.rooms.Statuses(one.ctx, []string{one.event, "no-" + one.event, other.event})
		require.ErrorIs(t, list[1].Err, ErrUnknown)
		require.EqualValues(t, 7, list[2].Capacity)
		alone, err := one.rooms.RoomStatus(one.ctx, one.event)
		require.NoError(t, err)
		require.NoError(t, list[0].Err)
		require.EqualValues(t, 2, alone.Waiting)
		require.Positive(t, alone.Now)
		list[0].Now, alone.Now = 0, 0 // rooms of two processes
		require.Equal(t, alone, list[0].Status)
	})
}

// A preview says which state a change leads to, or refuses it as the change itself does, and changes nothing.
func TestAPreviewChangesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 5, func(o *Options) { o.Replicas, o.ReplicaWait = 3, 1 })
		r.enterAll(2)
		all := func() string { return fmt.Sprint(r.client.HGetAll(r.ctx, roomKey(r.event)).Val()) }
		change := func(verb string) Change { return Change{Verb: verb, By: "ann", Why: "x"} }
		later, past, seats := int64(1e15), int64(1), int64(9)
		before := all()
		for want, c := range map[string]Change{
			"paused": change(Hold), "draining": change(Drain), "closed": change(Close),
			"scheduled": {Verb: Open, By: "ann", Why: "x", OpensAt: &later},
			"open":      {Verb: Set, By: "ann", Why: "x", Capacity: &seats},
		} {
			p, err := r.rooms.Preview(r.ctx, r.event, c)
			require.NoError(t, err, want)
			require.Equal(t, want, p.Becomes)
			require.EqualValues(t, 5, p.Capacity)
		}
		_, err := r.rooms.Preview(r.ctx, r.event, Change{Verb: Kick, By: "ann", Why: "x", User: "user-0"})
		require.NoError(t, err)
		_, err = r.rooms.Preview(r.ctx, r.event, change(Resume))
		require.ErrorIs(t, err, ErrConflict)
		_, err = r.rooms.Preview(r.ctx, r.event, Change{Verb: Set, By: "ann", Why: "x", ClosesAt: &past})
		require.ErrorIs(t, err, ErrTimes)
		_, err = r.rooms.Preview(r.ctx, r.event, change("destroy"))
		require.ErrorContains(t, err, "verb")
		_, err = r.rooms.Preview(r.ctx, "no-"+r.event, change(Open))
		require.ErrorIs(t, err, ErrUnknown)
		require.Equal(t, before, all())
		require.Equal(t, Waiting, r.status("user-0").State)
		audit, err := r.rooms.Latest(r.ctx, r.event, 10)
		require.NoError(t, err)
		require.Empty(t, audit)
	})
}

func TestTheLatestChangesOfARoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 5)
		for _, verb := range []string{Hold, Resume, Drain} {
			_, err := r.rooms.Control(r.ctx, r.event, Change{Verb: verb, By: "ann", Why: "x"})
			require.NoError(t, err)
		}
		list, err := r.rooms.Latest(r.ctx, r.event, 2)
		require.NoError(t, err)
		require.Equal(t, []string{Drain, Resume}, []string{list[0].Verb, list[1].Verb})
	})
}

// The instances of the users in front, and of those who were promoted, are counted.
func TestTheHoldersOfTheFirstUsers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		r.enterAll(3)
		_, err := r.rooms.Enter(r.ctx, r.event, `b"en`, "broker-2", 0)
		require.NoError(t, err)
		require.Equal(t, 1, r.tick().Promoted)
		counts, err := r.rooms.FirstHolders(r.ctx, r.event, 3)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"broker-1": 3, "broker-2": 1}, counts)
		counts, err = r.rooms.FirstHolders(r.ctx, r.event, 1)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"broker-1": 2}, counts, "one in the queue, and one with a turn")
	})
}
