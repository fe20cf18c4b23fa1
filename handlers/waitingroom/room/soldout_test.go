package room

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// sell lets a user buy a seat.
func (r *rig) sell(user string) {
	r.t.Helper()
	_, err := r.finish(user, r.admitted(user).JTI, true)
	require.NoError(r.t, err)
}

func TestASoldOutRoomTakesNoNewUsers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		r.sell("u1")
		buyer := r.admitted("u2")
		waits := r.enter("waits")
		require.Equal(t, SeatsHeld, r.tick().Table.Halted(), "the seat may come back")
		_, err := r.finish("u2", buyer.JTI, true)
		require.NoError(t, err)
		require.Equal(t, SoldOut, r.tick().Table.Halted())
		refused, err := r.rooms.Enter(r.ctx, r.event, "late", "broker-1", 0)
		require.ErrorIs(t, err, ErrRejected)
		require.Equal(t, "sold_out", refused.Reason)
		again := r.enter("waits")
		require.Equal(t, []any{Waiting, waits.Index}, []any{again.State, again.Index}, "a place is kept")

		status, err := r.rooms.RoomStatus(r.ctx, r.event)
		require.NoError(t, err)
		require.Equal(t, SoldOut, status.Halted)

		require.Empty(t, r.control(Change{Verb: Set, Capacity: p(int64(3))}).Halted)
		r.enter("late")
		require.Equal(t, 1, r.tick().Promoted, "the queue moves again")
		require.Equal(t, Ready, r.status("waits").State)
		require.Equal(t, Waiting, r.status("late").State)
	})
}

func TestASoldOutRoomIsClosed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 0, func(o *Options) { o.CloseSoldOut = true })
		require.Equal(t, "open", r.tick().Table.State, "no seat was sold yet")
		r.control(Change{Verb: Set, Capacity: p(int64(1))})
		buyer := r.admitted("u1")
		r.enter("waits")
		_, err := r.finish("u1", buyer.JTI, true)
		require.NoError(t, err)
		got := r.tick()
		require.Equal(t, Closed, got.Table.State)
		require.Equal(t, 1, got.Removed)
		require.Equal(t, "sold_out", r.status("waits").Reason)
		refused, err := r.rooms.Enter(r.ctx, r.event, "late", "broker-1", 0)
		require.ErrorIs(t, err, ErrRejected)
		require.Equal(t, "sold_out", refused.Reason)
		records, err := r.rooms.Audit(r.ctx, r.event, "", 100)
		require.NoError(t, err)
		last := records[len(records)-1]
		require.Equal(t, []any{"close", "schedule"}, []any{last.Verb, last.By})

		r.control(Change{Verb: Open, Capacity: p(int64(2))})
		r.enter("late")
		require.Equal(t, 1, r.tick().Promoted)
		r.control(Change{Verb: Close})
		r.pass(time.Second)
		_, err = r.rooms.Enter(r.ctx, r.event, "later", "broker-1", 0)
		require.ErrorIs(t, err, ErrRejected)
		require.Equal(t, "room_closed", r.status("later").Reason, "an operator closed it")
	})
}

// The capacity may be lowered by mistake. A room that is closed can be opened again, but without its queue.
func TestALowerCapacityClosesNoRoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 4, func(o *Options) { o.CloseSoldOut = true })
		r.sell("u1")
		late := r.admitted("u2")
		waits := r.enter("waits")
		require.Equal(t, SoldOut, r.control(Change{Verb: Set, Capacity: p(int64(1))}).Halted)
		require.Equal(t, opened, r.tick().Table.State)
		_, err := r.finish("u2", late.JTI, true)
		require.NoError(t, err, "a lease goes on")
		got := r.tick()
		require.Equal(t, opened, got.Table.State, "the last seat was sold before")
		require.Equal(t, SoldOut, got.Table.Halted())
		again := r.status("waits")
		require.Equal(t, []any{Waiting, waits.Index}, []any{again.State, again.Index})

		r.control(Change{Verb: Set, Capacity: p(int64(3))})
		require.Equal(t, 1, r.tick().Promoted, "the queue moves again")
		r.sell("waits")
		require.Equal(t, Closed, r.tick().Table.State, "a sale took the last seat")
		require.Equal(t, Closed, r.control(Change{Verb: Set, Capacity: p(int64(4))}).State)
		require.Equal(t, opened, r.control(Change{Verb: Open}).State)
		r.enter("u3")
		require.Equal(t, 1, r.tick().Promoted)
	})
}

func TestASoldOutRoomThatIsOpenedAgainStaysOpen(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, func(o *Options) { o.CloseSoldOut = true })
		r.sell("u1")
		require.Equal(t, Closed, r.tick().Table.State)
		require.Equal(t, SoldOut, r.control(Change{Verb: Open}).Halted)
		require.Equal(t, opened, r.tick().Table.State)
		_, err := r.rooms.Enter(r.ctx, r.event, "late", "broker-1", 0)
		require.ErrorIs(t, err, ErrRejected, "it is still sold out")
		r.control(Change{Verb: Set, Capacity: p(int64(2))})
		r.enter("late")
		require.Equal(t, 1, r.tick().Promoted)
	})
}

// An operator may add seats between the sale of the last one and the tick that would close the room.
func TestASeatThatIsAddedInTimeKeepsTheRoomOpen(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, func(o *Options) { o.CloseSoldOut = true })
		buyer := r.admitted("u1")
		r.enter("waits")
		_, err := r.finish("u1", buyer.JTI, true)
		require.NoError(t, err)
		r.control(Change{Verb: Set, Capacity: p(int64(2))})
		got := r.tick()
		require.Equal(t, opened, got.Table.State)
		require.Equal(t, 1, got.Promoted)
	})
}

func TestAHoldKeepsTheStateOfTheRoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		r.enter("u1")
		r.control(Change{Verb: Drain})
		require.Equal(t, paused, r.control(Change{Verb: Hold}).State)
		require.Zero(t, r.tick().Promoted)
		refused, err := r.rooms.Enter(r.ctx, r.event, "late", "broker-1", 0)
		require.ErrorIs(t, err, ErrRejected)
		require.Equal(t, draining, refused.Reason, "it still takes no new users")
		require.Equal(t, draining, r.control(Change{Verb: Resume}).State)
		require.Equal(t, 1, r.tick().Promoted)

		opens := r.tick().Table.AsOf + 60_000
		require.Equal(t, scheduled, r.control(Change{Verb: Open, OpensAt: &opens}).State)
		r.control(Change{Verb: Hold})
		r.pass(time.Hour)
		require.Equal(t, paused, r.tick().Table.State, "the schedule ends no hold")
		require.Equal(t, scheduled, r.control(Change{Verb: Resume}).State)
		require.Equal(t, opened, r.tick().Table.State, "its time has come")
	})
}

func TestWhyNoUserIsPromoted(t *testing.T) {
	t.Parallel()
	open := Table{State: "open", Capacity: 10, Concurrency: -1, PerMinute: -1}
	for want, change := range map[Halt]func(*Table){
		"":              func(*Table) {},
		SoldOut:         func(t *Table) { t.Sold = 10 },
		SeatsHeld:       func(t *Table) { t.Sold, t.Ready, t.Admitted = 7, 1, 2 },
		NotOpen:         func(t *Table) { t.State = scheduled },
		OnHold:          func(t *Table) { t.Hold = 1 },
		RoomClosed:      func(t *Table) { t.State = closed },
		CapacityUnknown: func(t *Table) { t.Capacity = -1 },
		LimitedToNone:   func(t *Table) { t.PerMinute = 0 },
	} {
		one := open
		change(&one)
		require.Equal(t, want, one.Halted())
	}
	for want, states := range map[Halt][]string{NotOpen: {scheduled, PreQueue, Drawing}, OnHold: {paused}, "": {opened, draining}} {
		for _, state := range states {
			one := open
			one.State = state
			require.Equal(t, want, one.Halted(), state)
		}
	}
	one := open
	one.Concurrency = 0
	require.Equal(t, LimitedToNone, one.Halted())
	one = open
	one.Capacity = 0
	require.Equal(t, LimitedToNone, one.Halted(), "nothing was sold")
	one = open
	one.State, one.Sold = scheduled, 10
	require.Equal(t, SoldOut, one.Halted(), "newcomers are refused")
}
