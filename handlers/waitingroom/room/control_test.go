package room

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func z(score float64, member string) goredis.Z { return goredis.Z{Score: score, Member: member} }

func (r *rig) control(c Change) Status {
	r.t.Helper()
	c.By, c.Why = "ann", "test"
	s, err := r.rooms.Control(r.ctx, r.event, c)
	require.NoError(r.t, err)
	return s
}

func p[T any](v T) *T { return &v }

func TestNoUserIsPromotedWhileTheCapacityIsUnknown(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		r.enterAll(2)
		tick := r.tick()
		require.Zero(t, tick.Promoted)
		require.EqualValues(t, -1, tick.Table.Capacity)
		require.NoError(t, r.rooms.SetCapacity(r.ctx, r.event, 1))
		require.NoError(t, r.rooms.SetCapacity(r.ctx, r.event, 2), "it changes nothing")
		require.Equal(t, 1, r.tick().Promoted)
		require.ErrorIs(t, r.rooms.SetCapacity(r.ctx, r.event+"-none", 2), ErrUnknown)
	})
}

func TestLimitsOfARoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 100)
		r.enterAll(60)
		r.control(Change{Verb: Set, Concurrency: p(int64(10))})
		require.Equal(t, 10, r.tick().Promoted)
		require.Zero(t, r.tick().Promoted)
		status := r.control(Change{Verb: Set, Capacity: p(int64(5))})
		require.Zero(t, status.Free)
		require.EqualValues(t, 10, status.Ready)
		for i := range 6 {
			r.leave(fmt.Sprint("user-", i))
		}
		require.Equal(t, 1, r.tick().Promoted, "below the capacity again")
		r.control(Change{Verb: Set, Capacity: p(int64(100)), Concurrency: p(int64(-1)), PerMinute: p(int64(120))})
		for range 5 {
			require.Equal(t, 2, r.tick().Promoted, "120 per minute")
		}
		r.control(Change{Verb: Set, Mode: p(PassThrough), Concurrency: p(int64(1))})
		require.Equal(t, 39, r.tick().Promoted, "all others")
		r.control(Change{Verb: Set, Mode: p(Reject)})
		_, err := r.rooms.Enter(r.ctx, r.event, "new", "b", 0)
		require.ErrorIs(t, err, ErrRejected)
		require.Equal(t, "attached", r.enter("user-59").How)
	})
}

// A user who was removed as absent has an index to come back to, but not in a closed room.
func TestAClosedRoomRestoresNoUser(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		index := r.enter("u").Index
		r.pass(r.rooms.opts.Grace + r.rooms.opts.SeenInterval)
		require.Equal(t, 1, r.tick().Removed)
		r.control(Change{Verb: Close})
		require.Empty(t, r.back("u", index).State)
		require.Empty(t, r.seen(Sign{User: "u", Index: index})[0].State)
	})
}

// A closed room can only be opened again. What is refused is not in the audit.
func TestAClosedRoomIsNotClosedAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		require.Equal(t, "closed", r.control(Change{Verb: Close}).State)
		before, err := r.rooms.Audit(r.ctx, r.event, "", 100)
		require.NoError(t, err)
		for _, verb := range []string{Close, Drain, Hold, Resume} {
			_, err := r.rooms.Control(r.ctx, r.event, Change{Verb: verb, By: "ann", Why: "test"})
			require.ErrorIs(t, err, ErrConflict, verb)
		}
		after, err := r.rooms.Audit(r.ctx, r.event, "", 100)
		require.NoError(t, err)
		require.Equal(t, before, after)
		require.Equal(t, "open", r.control(Change{Verb: Open}).State)
	})
}

func TestTheLifeOfARoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		r.enterAll(3)
		later := r.status("user-0").Now + time.Hour.Milliseconds()
		require.Equal(t, "scheduled", r.control(Change{Verb: Open, OpensAt: &later}).State)
		tick := r.tick()
		require.Zero(t, tick.Promoted)
		require.Equal(t, later, tick.Table.OpensAt)
		r.pass(time.Hour)
		r.seen(Sign{User: "user-0"}, Sign{User: "user-1"}, Sign{User: "user-2"})
		r.control(Change{Verb: Set, Concurrency: p(int64(1))})
		require.Equal(t, 1, r.tick().Promoted, "it opened by its schedule")

		require.Equal(t, "paused", r.control(Change{Verb: Hold}).State)
		_, err := r.rooms.Control(r.ctx, r.event, Change{Verb: Hold})
		require.ErrorIs(t, err, ErrConflict)
		r.control(Change{Verb: Set, Concurrency: p(int64(2))})
		require.Zero(t, r.tick().Promoted)
		require.Equal(t, "open", r.control(Change{Verb: Resume}).State)
		require.Equal(t, 1, r.tick().Promoted)

		require.Equal(t, "draining", r.control(Change{Verb: Drain}).State)
		refused, err := r.rooms.Enter(r.ctx, r.event, "new", "b", 0)
		require.ErrorIs(t, err, ErrRejected)
		require.Equal(t, "draining", refused.Reason)
		r.control(Change{Verb: Kick, User: "user-0"})
		require.Equal(t, "kicked", r.status("user-0").Reason)
		require.Equal(t, 1, r.tick().Promoted)
		r.control(Change{Verb: Message, Message: p(`"soon"`)})
		require.Equal(t, `"soon"`, r.tick().Table.Message)

		r.control(Change{Verb: Open})
		q := r.enter("late")
		r.control(Change{Verb: Close})
		require.Equal(t, 1, r.tick().Removed)
		require.Equal(t, "room_closed", r.status("late").Reason)
		require.Empty(t, r.back("late", q.Index).State)
		require.Equal(t, Admitted, r.claim("user-1").State, "leases go on")
		refused, err = r.rooms.Enter(r.ctx, r.event, "new", "b", 0)
		require.ErrorIs(t, err, ErrRejected)
		require.Equal(t, "room_closed", refused.Reason)

		r.leave("user-1")
		r.leave("user-2")
		r.pass(24 * time.Hour)
		tick = r.tick()
		require.True(t, tick.Cleared)
		records, err := r.rooms.Audit(r.ctx, r.event, "", 100)
		require.NoError(t, err)
		require.Len(t, records, 12)
		for _, one := range records {
			require.NotEmpty(t, one.By, "%+v", one)
			require.NotEmpty(t, one.Why, "%+v", one)
			require.Positive(t, one.At, "%+v", one)
		}
		require.Equal(t, []string{"clear", "schedule"}, []string{records[11].Verb, records[11].By})
		require.Equal(t, []string{"open", "ann", "test"}, []string{records[0].Verb, records[0].By, records[0].Why})
		require.Equal(t, "schedule", records[2].By)
		page, err := r.rooms.Audit(r.ctx, r.event, records[9].ID, 100)
		require.NoError(t, err)
		require.Equal(t, records[10:], page)
		left := 0
		for _, key := range keys(r.event) {
			left += int(r.client.Exists(r.ctx, key).Val())
		}
		require.Equal(t, 1, left, "the audit alone")
		_, err = r.rooms.Tick(r.ctx, r.event)
		require.ErrorIs(t, err, ErrUnknown)
		events, err := r.rooms.Events(r.ctx)
		require.NoError(t, err)
		require.NotContains(t, events, r.event)
	})
}

func TestAnEmptyRoomWithoutConfigurationIsCleared(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		r.tick()
		r.pass(40 * time.Minute)
		r.enter("u1")
		r.tick()
		r.leave("u1")
		r.tick()
		r.pass(59 * time.Minute)
		require.False(t, r.tick().Cleared)
		r.pass(time.Minute)
		require.True(t, r.tick().Cleared)
	})
}

// Nobody comes for hours, at night or because all seats are sold. What was sold stays sold, and who has bought has.
func TestSeatsStaySoldWhenTheRoomIsIdle(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2, purchases(1))
		r.buys("u1")
		r.tick()
		for range 2 { // the second time nobody has bought since
			r.pass(2 * time.Hour)
			require.True(t, r.tick().Cleared)
			require.NoError(t, r.rooms.Create(r.ctx, r.event))
			require.NoError(t, r.rooms.SetCapacity(r.ctx, r.event, 2))
			status, err := r.rooms.RoomStatus(r.ctx, r.event)
			require.NoError(t, err)
			require.EqualValues(t, 1, status.Sold)
			require.EqualValues(t, 1, status.Free)
			_, err = r.rooms.Enter(r.ctx, r.event, "u1", "broker-1", 0)
			require.ErrorIs(t, err, ErrRejected, "purchases are counted")
			r.tick()
		}
		r.buys("u2")
		r.tick()
		r.pass(2 * time.Hour)
		require.True(t, r.tick().Cleared)
		require.EqualValues(t, 2, r.control(Change{Verb: Open, Capacity: p(int64(2))}).Sold, "an operator has to say that there are more")
		_, err := r.rooms.Enter(r.ctx, r.event, "u3", "broker-1", 0)
		require.ErrorIs(t, err, ErrRejected)
		r.control(Change{Verb: Close})
		r.pass(24 * time.Hour)
		require.True(t, r.tick().Cleared)
		require.Zero(t, r.client.Exists(r.ctx, "ROOM_SOLD:{"+r.event+"}", "ENTRY_BUYERS:{"+r.event+"}").Val())
	})
}

// A room that closed itself after its last sale stays closed for as long as one that an operator has closed.
func TestARoomThatIsSoldOutStaysClosed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, func(o *Options) { o.CloseSoldOut = true })
		r.buys("u1")
		require.Equal(t, Closed, r.tick().Table.State)
		r.pass(2 * time.Hour)
		require.False(t, r.tick().Cleared)
		r.pass(22 * time.Hour)
		require.True(t, r.tick().Cleared)
		cleared, err := r.rooms.Cleared(r.ctx, r.event)
		require.NoError(t, err)
		require.True(t, cleared, "it ended")
	})
}

// An operator creates a room as it shall be, so users who come at that moment find no room or that one.
func TestARoomIsOpenedInOneStep(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		require.NoError(t, r.client.Del(r.ctx, keys(r.event)...).Err())
		past := int64(1)
		_, err := r.rooms.Control(r.ctx, r.event, Change{Verb: Open, By: "ann", ClosesAt: &past})
		require.ErrorIs(t, err, ErrTimes)
		_, err = r.rooms.RoomStatus(r.ctx, r.event)
		require.ErrorIs(t, err, ErrUnknown, "nothing is left of a room that can't be opened like this")

		watched := make(chan []string, 1)
		entering, stop := context.WithCancel(r.ctx)
		go func() { // a user tries the page all the time
			var states []string
			for entering.Err() == nil {
				if status, err := r.rooms.RoomStatus(r.ctx, r.event); err == nil && !slices.Contains(states, status.State) {
					states = append(states, status.State)
				}
			}
			watched <- states
		}()
		shuffled := Shuffle
		later := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
		for range 20 {
			require.Equal(t, PreQueue, r.control(Change{Verb: Open, Mode: &shuffled, OpensAt: &later}).State)
			require.NoError(t, r.client.Del(r.ctx, keys(r.event)...).Err())
		}
		stop()
		require.Subset(t, []string{PreQueue}, <-watched)
	})
}

// While the users of a closed room are being removed, the first of them are gone already, so the others can't keep theirs.
func TestARoomIsNotOpenedWhileItsUsersAreRemoved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		r.enterAll(1200)
		r.control(Change{Verb: Close})
		require.Positive(t, r.tick().Removed)
		_, err := r.rooms.Control(r.ctx, r.event, Change{Verb: Open, By: "ann"})
		require.ErrorIs(t, err, ErrConflict)
		for r.tick().More {
		}
		require.Equal(t, "open", r.control(Change{Verb: Open}).State)
		status, err := r.rooms.RoomStatus(r.ctx, r.event)
		require.NoError(t, err)
		require.Zero(t, status.Waiting)
	})
}

func TestOpenDropsTheSchedule(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		later := r.status("u1").Now + time.Hour.Milliseconds()
		r.control(Change{Verb: Open, ClosesAt: &later})
		r.pass(time.Hour)
		require.Equal(t, "closed", r.tick().Table.State)
		r.control(Change{Verb: Open})
		require.Equal(t, "open", r.tick().Table.State, "it does not close again")

		later = r.status("u1").Now + time.Hour.Milliseconds()
		require.Equal(t, "scheduled", r.control(Change{Verb: Open, OpensAt: &later, ClosesAt: p(later + 1)}).State)
		status := r.control(Change{Verb: Open})
		require.Equal(t, "open", status.State)
		require.Zero(t, status.OpensAt)
		require.Zero(t, status.ClosesAt)
	})
}

func TestARoomThatAnOperatorChangedStays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for _, c := range []Change{{Verb: Hold}, {Verb: Drain}, {Verb: Close}, {Verb: Kick, User: "u1"}, {Verb: Message, Message: p("soon")}} {
			r := newRig(t, s, 2)
			r.control(c)
			r.tick()
			r.pass(2 * time.Hour)
			require.Equal(t, c.Verb == Kick || c.Verb == Message, r.tick().Cleared, c.Verb)
		}
	})
}

func TestNumbersHaveALimit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		huge := int64(math.MaxInt64)
		require.ErrorContains(t, r.rooms.SetCapacity(r.ctx, r.event, huge), "at most 1000000000")
		for _, c := range []Change{{Verb: Set, Capacity: &huge}, {Verb: Set, Concurrency: &huge}, {Verb: Open, PerMinute: &huge}} {
			_, err := r.rooms.Control(r.ctx, r.event, c)
			require.ErrorContains(t, err, "at most 1000000000")
		}
		require.NoError(t, r.rooms.SetCapacity(r.ctx, r.event, 1_000_000_000))
		require.EqualValues(t, 1_000_000_000, r.tick().Table.Free)
	})
}

func TestChangesThatAreNotValid(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		for _, c := range []Change{
			{}, {Verb: "explode"}, {Verb: Kick}, {Verb: Message}, {Verb: Set, Capacity: p(int64(-1))}, {Verb: Set, Mode: p("vip")},
			{Verb: Hold, Capacity: p(int64(1))},
		} {
			_, err := r.rooms.Control(r.ctx, r.event, c)
			require.Error(t, err, c)
		}
		_, err := r.rooms.Control(r.ctx, r.event+"-none", Change{Verb: Hold})
		require.ErrorIs(t, err, ErrUnknown)
	})
}

func TestOneCallerQueriesTheEventService(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		first, err := r.rooms.Reserve(r.ctx, r.event, time.Minute)
		require.NoError(t, err)
		second, err := r.rooms.Reserve(r.ctx, r.event, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, []bool{first, second})
		require.NoError(t, r.rooms.Deny(r.ctx, r.event, time.Minute))
		_, err = r.rooms.Reserve(r.ctx, r.event, time.Minute)
		require.ErrorIs(t, err, ErrUnknown)
		require.NoError(t, r.rooms.Create(r.ctx, r.event))
		first, err = r.rooms.Reserve(r.ctx, r.event, time.Minute)
		require.NoError(t, err)
		require.True(t, first)
		r.client.Del(r.ctx, queryKey(r.event))
		o := options()
		o.MaxEvents = 0
		require.ErrorIs(t, r.process(s, o).Create(r.ctx, r.event+"-more"), ErrTooMany)
	})
}

func TestDispatchStreams(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		r.enter("u1")
		r.back("u2", 0)
		r.tick()
		holders, err := r.rooms.Holder(r.ctx, r.event, []string{"u1", "u2", "u3"})
		require.NoError(t, err)
		require.Equal(t, []string{"broker-1", "broker-2", ""}, holders)
		instance := "instance-" + r.event
		require.NoError(t, r.rooms.Route(r.ctx, instance, r.event, "u1", "u2"))
		require.EqualValues(t, 2, r.client.XLen(r.ctx, DispatchStream(instance)).Val())
		list, err := r.rooms.Instances(r.ctx)
		require.NoError(t, err)
		require.Contains(t, list, instance)
		require.NoError(t, r.rooms.Dismiss(context.WithoutCancel(r.ctx), instance))
		require.Zero(t, r.client.Exists(r.ctx, DispatchStream(instance)).Val())
		list, err = r.rooms.Instances(r.ctx)
		require.NoError(t, err)
		require.NotContains(t, list, instance)
		found, err := r.rooms.Find(r.ctx, r.event, "u2")
		require.NoError(t, err)
		require.Equal(t, "broker-2", found.Instance)
		require.Positive(t, found.Seen)
	})
}

// The client library sends a change again when it has no reply. It is applied and recorded once,
// also after the change of another operator.
func TestAChangeThatIsSentAgainIsAppliedOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, -1)
		change := func(id, verb, user string) Status {
			t.Helper()
			status, err := r.rooms.control(r.ctx, r.event, verb, "ann", "test", user, "", "", "change", id)
			require.NoError(t, err)
			return status
		}
		require.Equal(t, "paused", change("id-1", Hold, "").State)
		require.Equal(t, "paused", change("id-1", Hold, "").State, "no conflict")
		require.Equal(t, "open", change("id-2", Resume, "").State)
		require.Equal(t, "open", change("id-1", Hold, "").State)
		r.enter("ben")
		require.Zero(t, change("id-3", Kick, "ben").Waiting)
		r.enter("ben")
		require.EqualValues(t, 1, change("id-3", Kick, "ben").Waiting, "the next place of the user")
		for i := range 12 {
			change(fmt.Sprint("id-", i+10), Set, "")
		}
		require.Less(t, r.client.HStrLen(r.ctx, roomKey(r.event), "changes").Val(), int64(100))
		_, err := r.rooms.Control(r.ctx, r.event, Change{Verb: Hold, By: "ann", Why: "test"})
		require.NoError(t, err)
		_, err = r.rooms.Control(r.ctx, r.event, Change{Verb: Hold, By: "ann", Why: "test"})
		require.ErrorIs(t, err, ErrConflict, "another change")
		records, err := r.rooms.Audit(r.ctx, r.event, "", 100)
		require.NoError(t, err)
		require.Len(t, records, 3+12+1)
	})
}

// An end that has passed, or is before the opening, would close the room at the next tick.
func TestARoomDoesNotCloseInThePast(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		r.tick()
		now, err := r.client.Get(r.ctx, r.clock()).Int64()
		require.NoError(t, err)
		refused := func(c Change) {
			t.Helper()
			before, err := r.rooms.RoomStatus(r.ctx, r.event)
			require.NoError(t, err)
			c.By, c.Why = "ann", "test"
			_, err = r.rooms.Control(r.ctx, r.event, c)
			require.ErrorIs(t, err, ErrTimes)
			after, err := r.rooms.RoomStatus(r.ctx, r.event)
			require.NoError(t, err)
			require.Equal(t, before, after)
		}
		for _, verb := range []string{Open, Set} {
			refused(Change{Verb: verb, ClosesAt: p(now)})
			refused(Change{Verb: verb, ClosesAt: p(now - 60_000), Capacity: p(int64(9))})
		}
		_, err = r.rooms.Control(r.ctx, "new-"+r.event, Change{Verb: Open, By: "ann", Why: "test", ClosesAt: p(now - 1)})
		require.ErrorIs(t, err, ErrTimes)
		_, err = r.rooms.RoomStatus(r.ctx, "new-"+r.event)
		require.ErrorIs(t, err, ErrUnknown, "no room is created")
		r.control(Change{Verb: Open, OpensAt: p(now + 60_000)})
		refused(Change{Verb: Set, ClosesAt: p(now + 60_000)})
		r.control(Change{Verb: Set, ClosesAt: p(now + 120_000)})
		refused(Change{Verb: Set, OpensAt: p(now + 120_000)})
		r.control(Change{Verb: Set, OpensAt: p(now + 180_000), ClosesAt: p(now + 240_000)})
		r.control(Change{Verb: Set, ClosesAt: p(int64(0))})
		r.control(Change{Verb: Set, OpensAt: p(now + 300_000)})
		require.Equal(t, "scheduled", r.control(Change{Verb: Open, OpensAt: p(now + 60_000)}).State)
	})
}
