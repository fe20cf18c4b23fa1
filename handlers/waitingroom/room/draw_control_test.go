package room

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// conflicts checks that a change is not possible.
func (r *rig) conflicts(c Change) {
	r.t.Helper()
	c.By, c.Why = "ann", "test"
	_, err := r.rooms.Control(r.ctx, r.event, c)
	require.ErrorIs(r.t, err, ErrConflict)
}

func TestALifeWithAPreQueue(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 3)
		r.conflicts(Change{Verb: Set, Mode: p(Shuffle)})
		r.enter("early")
		r.conflicts(Change{Verb: Open, Mode: p(Shuffle)}) // this user came before the commitment
		require.Equal(t, "open", r.tick().Table.State)
		r.leave("early")

		clock, err := r.client.Get(r.ctx, r.clock()).Int64()
		require.NoError(t, err)
		at := clock + 60_000
		status := r.control(Change{Verb: Open, Mode: p(Shuffle), OpensAt: &at})
		require.Equal(t, []any{PreQueue, at}, []any{status.State, status.OpensAt})
		require.Len(t, status.Commitment, 64)
		require.Equal(t, status.Commitment, r.control(Change{Verb: Open, Mode: p(Shuffle), OpensAt: &at}).Commitment, "again")
		for _, verb := range []string{Hold, Resume, Drain} {
			r.conflicts(Change{Verb: verb})
		}
		r.control(Change{Verb: Set, Mode: p(Reject)})
		_, err = r.rooms.Enter(r.ctx, r.event, "u", "b", 0)
		require.ErrorIs(t, err, ErrRejected)
		r.control(Change{Verb: Set, Mode: p(Shuffle)})
		r.enterAll(3)
		require.Equal(t, PreQueue, r.tick().Table.State)
		r.pass(time.Minute)
		require.Equal(t, Drawing, r.tick().Table.State, "the schedule ends it")
		for _, verb := range []string{Hold, Drain} {
			r.conflicts(Change{Verb: verb})
		}
		r.conflicts(Change{Verb: Open, Mode: p(Shuffle)})
		require.Equal(t, Drawing, r.control(Change{Verb: Open}).State)
		r.draw()
		status = r.control(Change{Verb: Hold})
		require.Equal(t, []any{"paused", int64(3), int64(3)}, []any{status.State, status.Frozen, status.Drawn})
		require.Positive(t, status.DrawnAt)
		r.conflicts(Change{Verb: Open, Mode: p(Shuffle)}) // drawn once
		require.Equal(t, "open", r.control(Change{Verb: Open}).State)
		require.Equal(t, 3, r.tick().Promoted)

		secret := r.audit().Secret
		records, err := r.rooms.Audit(r.ctx, r.event, "", 100)
		require.NoError(t, err)
		var verbs []string
		for _, record := range records {
			verbs = append(verbs, record.Verb)
			require.NotContains(t, fmt.Sprint(record), secret)
		}
		require.Equal(t, "open open set set freeze open draw hold open", strings.Join(verbs, " "))
		require.Contains(t, records[0].Detail, "commitment="+status.Commitment)
		require.Contains(t, records[6].Detail, "users=3 digest=")

		r.control(Change{Verb: Close})
		for _, user := range []string{"user-0", "user-1", "user-2"} {
			r.leave(user)
		}
		r.pass(24 * time.Hour)
		require.True(t, r.tick().Cleared)
		_, err = r.rooms.Shuffle(r.ctx, r.event)
		require.ErrorIs(t, err, ErrUnknown)
		left := 0
		for _, key := range keys(r.event) {
			left += int(r.client.Exists(r.ctx, key).Val())
		}
		require.Equal(t, 1, left, "the audit alone")
	})
}

func TestTheSecretIsShownAfterTheDrawAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 1)
		secret := r.client.HGet(r.ctx, roomKey(r.event), "secret").Val()
		require.Len(t, secret, 64)
		status, err := r.rooms.RoomStatus(r.ctx, r.event)
		require.NoError(t, err)
		values, _, err := r.rooms.runScript(r.ctx, "control", r.event, "status", "", "", "", "", "")
		require.NoError(t, err)
		records, err := r.rooms.Audit(r.ctx, r.event, "", 100)
		require.NoError(t, err)
		require.NotContains(t, fmt.Sprint(r.tick(), status, values, records, r.client.Get(r.ctx, TableKey(r.event)).Val()), secret)
		r.freeze()
		_, err = r.rooms.Shuffle(r.ctx, r.event)
		require.ErrorIs(t, err, ErrConflict)
		r.draw()
		require.Equal(t, secret, r.audit().Secret)
	})
}

func TestAPreQueueWithoutUsersOpens(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 0)
		r.freeze()
		first, second := r.enter("first"), r.enter("second")
		require.Zero(t, r.draw())
		require.Less(t, first.Index, second.Index)
		require.Equal(t, 2, r.tick().Promoted)
		require.Empty(t, r.audit().Order)
	})
}

func TestARoomIsClosedInADraw(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 1200)
		r.freeze()
		all := r.plan()
		r.part(all, 0)
		r.enter("late")
		r.leave(all.users[700])
		r.control(Change{Verb: Close})
		_, err := r.rooms.part(r.ctx, r.event, all, maxCall, maxCall)
		require.ErrorIs(t, err, ErrConflict)
		require.Zero(t, r.draw())
		r.conflicts(Change{Verb: Open}) // its users are not removed yet
		for more := true; more; {
			tick, err := r.rooms.Tick(r.ctx, r.event)
			require.NoError(t, err)
			if more = !tick.Ran || tick.More; !tick.Ran {
				r.outage(time.Second)
			}
		}
		for _, user := range []string{all.users[0], all.users[900], "late"} {
			require.Equal(t, Place{Reason: "room_closed", Ahead: -1, Now: 1}, now1(r.status(user)))
		}
		require.Equal(t, "left", r.status(all.users[700]).Reason)
		require.Zero(t, r.tick().Table.Waiting)
		require.Zero(t, r.client.Exists(r.ctx, frozenKey(r.event), keys(r.event)[0], keys(r.event)[1]).Val())
		require.Equal(t, "open", r.control(Change{Verb: Open}).State)
		_, err = r.rooms.Shuffle(r.ctx, r.event)
		require.ErrorIs(t, err, ErrConflict, "the draw was not completed")
		require.Equal(t, "new", r.enter(all.users[0]).How)
	})
}

func TestABadRecordOfAPreQueueIsSetAside(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 3)
		bad := []string{"no JSON", `{"userId": "user-1"}`, `{"userId":"a\u0000"}`}
		for _, text := range bad {
			require.NoError(t, r.client.ZAdd(r.ctx, keys(r.event)[0], z(1, text)).Err())
		}
		r.freeze()
		require.Equal(t, 3, r.plan().aside)
		require.NoError(t, r.client.HDel(r.ctx, asideKey(r.event), bad[0]).Err())
		drawn, err := r.rooms.Draw(r.ctx, r.event)
		require.NoError(t, err)
		require.Equal(t, Drawn{Users: 3, Aside: 1}, drawn, "a record is counted once")
		require.Len(t, r.audit().Order, 3)
		require.Equal(t, 3, r.tick().Promoted)
		for _, text := range bad {
			require.Equal(t, "undecodable", r.client.HGet(r.ctx, asideKey(r.event), text).Val())
		}
		require.Zero(t, r.tick().Table.Waiting)
	})
}

func TestADrawOfUsersThatWereChangedFails(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 600)
		r.freeze()
		r.part(r.plan(), 0)
		require.NoError(t, r.client.ZRem(r.ctx, frozenKey(r.event), `{"userId":"user-5"}`).Err())
		_, err := r.rooms.Draw(r.ctx, r.event)
		require.ErrorContains(t, err, "600 users were frozen, and 599 are left")
		require.NoError(t, r.client.ZAdd(r.ctx, frozenKey(r.event), z(5, `{"userId":"invented"}`)).Err())
		_, err = r.rooms.Draw(r.ctx, r.event)
		require.ErrorContains(t, err, "the users of the pre-queue have changed since it was frozen")
		require.Zero(t, r.tick().Promoted)
	})
}

func TestAFullServerRefusesAPartWhole(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 600)
		r.freeze()
		all := r.plan()
		r.part(all, 0)
		r.absent(all.users[590])
		r.leave(all.users[1])
		want := r.queue()
		require.NoError(t, r.client.Set(r.ctx, r.full(), 1, 0).Err())
		_, err := r.rooms.Draw(r.ctx, r.event)
		require.Error(t, err)
		require.Equal(t, want, r.queue())
		require.NoError(t, r.client.Del(r.ctx, r.full()).Err())
		require.Equal(t, 600, r.draw())
		require.Len(t, r.queue(), 598)
	})
}
