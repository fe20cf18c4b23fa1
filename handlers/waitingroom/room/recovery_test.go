package room

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// W1, W41, W44, W45
func TestAnOutageEndsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		status := func() Status {
			got, err := r.rooms.RoomStatus(r.ctx, r.event)
			require.NoError(t, err)
			return got
		}
		require.Zero(t, status().Hold)
		gone := r.enter("gone")
		r.pass(3 * time.Minute)
		require.Equal(t, 1, r.tick().Removed)
		p := r.admitted("buyer")
		waits := r.enter("waits")
		r.outage(time.Hour)
		got, err := r.rooms.Verify(r.ctx, r.event, "buyer", p.JTI, "session")
		require.NoError(t, err, "before the first tick")
		require.Greater(t, got.Until, got.Now)
		tick := r.tick()
		require.Equal(t, time.Hour+time.Second, tick.Gap)
		require.False(t, tick.Rewound)
		require.Equal(t, 10*time.Second, tick.Hold)
		paused := status()
		require.Equal(t, []any{int64(10_000), OnHold, "open"}, []any{paused.Hold, paused.Halted, paused.State})
		require.Zero(t, tick.Removed)
		require.Empty(t, tick.Ended[Expired])
		require.Positive(t, tick.Table.Epoch)
		require.Equal(t, p.Until+tick.Gap.Milliseconds(), r.status("buyer").Until, "the lease is later by the gap")
		require.Equal(t, waits.Index, r.status("waits").Index)
		require.Equal(t, gone.Index, r.enter("gone").Index, "the absent user has its ten minutes")

		_, err = r.finish("buyer", p.JTI, false)
		require.NoError(t, err)
		require.Zero(t, r.tick().Promoted, "the hold")
		r.pass(5 * time.Second)
		r.outage(time.Minute)
		require.Zero(t, r.tick().Promoted, "a second outage in the hold")
		r.pass(8 * time.Second)
		require.Zero(t, r.tick().Promoted)
		require.Equal(t, tick.Hold.Milliseconds()-9_000, status().Hold)
		r.pass(time.Second)
		require.Equal(t, 1, r.tick().Promoted)
		require.Zero(t, status().Hold)
		require.Equal(t, Ready, r.status("gone").State, "in the order of the indexes")
	})
}

// W3, W36, W42
func TestAnotherServerHoldsThePromotion(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		r.tick()
		r.enter("u1")
		r.client.ZAdd(r.ctx, "WAITING_SEEN:{"+r.event+"}", z(0, "u1")) // an old sign of life
		if s.Mini == nil {
			require.NotEmpty(t, r.client.HGet(r.ctx, roomKey(r.event), "run_id").Val())
			r.client.HSet(r.ctx, roomKey(r.event), "run_id", "another")
		} else { // without INFO: the number of the tick fell
			r.client.HSet(r.ctx, roomKey(r.event), "tick", 0)
		}
		tick := r.tick()
		require.Zero(t, tick.Promoted)
		require.Equal(t, 10*time.Second, tick.Hold)
		require.EqualValues(t, 2, tick.Table.Tick, "the number goes on")
		require.True(t, tick.Rewound)
		r.seen(Sign{User: "u1"})
		r.pass(10 * time.Second)
		require.Equal(t, 1, r.tick().Promoted)
	})
}

// A promotion that a failover loses is made again, at the same index. A broker that has the lease
// restores it in the pause. Otherwise the user gets another one, also after the notification.
func TestAPromotionThatAFailoverLosesIsMadeAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 3)
		users := []string{"ready", "known", "shown", "behind"}
		var places, leases []Place
		for _, user := range users {
			places = append(places, r.enter(user))
		}
		failover := r.save()
		require.Equal(t, 3, r.tick().Promoted)
		leases = append(leases, r.status("ready"), r.claim("known"), r.claim("shown"))
		failover()
		require.Zero(t, r.tick().Promoted)
		known := leases[1]
		r.seen(Sign{User: "known", Index: known.Index, JTI: known.JTI, Until: known.Until})
		_, err := r.rooms.Verify(r.ctx, r.event, "shown", leases[2].JTI, "session")
		require.ErrorIs(t, err, ErrEnded)
		r.pass(10 * time.Second)
		require.Equal(t, 2, r.tick().Promoted)
		for i, user := range users[:3] {
			p := r.status(user)
			require.Equal(t, places[i].Index, p.Index, user)
			if user == "known" {
				require.Equal(t, []any{Admitted, known.JTI}, []any{p.State, p.JTI})
			} else {
				require.Equal(t, Ready, p.State, user)
				require.NotEqual(t, leases[i].JTI, p.JTI, user)
			}
		}
		require.Equal(t, Waiting, r.status("behind").State)
		// The broker of this user was cut off, and comes too late with the first lease.
		shown := leases[2]
		require.NotEqual(t, shown.JTI, r.seen(Sign{User: "shown", Index: shown.Index, JTI: shown.JTI, Until: shown.Until})[0].JTI)
		_, err = r.rooms.Verify(r.ctx, r.event, "shown", shown.JTI, "session")
		require.ErrorIs(t, err, ErrEnded)
		require.EqualValues(t, 0, r.tick().Table.Free)
	})
}

// The room's time goes on where it was when a clock jumps back.
func TestAClockThatJumpsBackIsARecovery(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		p := r.admitted("u1")
		r.outage(-5 * time.Minute)
		got, err := r.rooms.Tick(r.ctx, r.event)
		require.NoError(t, err)
		require.True(t, got.Ran)
		require.Equal(t, 10*time.Second, got.Hold)
		require.True(t, got.Rewound)
		require.Equal(t, Admitted, r.status("u1").State)
		require.Equal(t, p.Until-5*time.Minute.Milliseconds(), r.status("u1").Until)
		r.pass(5 * time.Minute)
		require.Equal(t, 1, r.tick().Ended[Expired])
	})
}

// W44
func TestNoKeyOfALiveRoomExpires(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		r.admitted("u1")
		r.enterAll(3)
		r.leave("user-2")
		r.tick()
		found := 0
		for _, key := range append(keys(r.event), "ENTRY_TOKEN:{"+r.event+"}:u1") {
			if ttl := r.client.PTTL(r.ctx, key).Val(); ttl != -2 && key != TableKey(r.event) {
				found++
				require.EqualValues(t, -1, ttl, key)
			}
		}
		require.Greater(t, found, 10)
	})
}

// W19
func TestAUserPutsTheEventOnTheListAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		r.tick()
		_, err := r.rooms.Events(r.ctx)
		require.NoError(t, err)
		require.Contains(t, r.rooms.ticks, r.event)
		r.client.SRem(r.ctx, roomsKey, r.event)
		r.enter("u1")
		events, err := r.rooms.Events(r.ctx)
		require.NoError(t, err)
		require.Empty(t, r.rooms.ticks, "numbers of ticks are of events on the list")
		require.NotContains(t, events, r.event, "there was a tick")
		r.outage(3 * time.Second)
		r.enter("u1")
		events, err = r.rooms.Events(r.ctx)
		require.NoError(t, err)
		require.Contains(t, events, r.event)
	})
}

// noList fails the commands that add an event to the set of events.
type noList struct{}

func (noList) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (noList) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (noList) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if !strings.EqualFold(cmds[0].Name(), "sadd") {
			return next(ctx, cmds)
		}
		err := errors.New("the node of the set does not answer")
		cmds[0].SetErr(err)
		return err
	}
}

// A script that has run has its answer, also when the event can not be put on the list.
func TestTheAnswerCountsWithoutTheList(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		var lines redistest.Lines
		r := newRig(t, s, 1, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
		p := r.admitted("buyer")
		r.outage(3 * time.Second)
		r.rooms.server.Client().AddHook(noList{})
		require.Equal(t, "new", r.enter("late").How)
		_, err := r.finish("buyer", p.JTI, true)
		require.NoError(t, err)
		require.Equal(t, 1, lines.Count("event not added to the set of rooms"))
	})
}

// Another process creates the room again while a tick finds none.
func TestARoomThatIsCreatedAgainStaysOnTheList(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		require.NoError(t, r.rooms.drop(r.ctx, r.event))
		events, err := r.rooms.Events(r.ctx)
		require.NoError(t, err)
		require.Contains(t, events, r.event)
		r.client.Del(r.ctx, roomKey(r.event))
		require.NoError(t, r.rooms.drop(r.ctx, r.event))
		events, err = r.rooms.Events(r.ctx)
		require.NoError(t, err)
		require.NotContains(t, events, r.event)
	})
}

// W22
// Redis has lost a room, and a newcomer creates it again. Its epoch is another one, so the brokers of those who wait send all
// their signs at once.
func TestARoomThatIsCreatedAgainHasAnotherEpoch(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		created := func() int64 {
			require.NoError(t, r.client.Del(r.ctx, keys(r.event)...).Err())
			r.outage(time.Minute)
			require.NoError(t, r.rooms.Create(r.ctx, r.event))
			return r.tick().Table.Epoch
		}
		require.NotEqual(t, created(), created())
	})
}

func TestABadRecordIsSetAside(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 3)
		r.enterAll(2)
		waiting := "WAITING:{" + r.event + "}"
		for score, text := range []string{"no json", `{"userId":7}`, `[]`, `{"userId":""}`, `"x"`, `null`} {
			r.client.ZAdd(r.ctx, waiting, z(float64(score), text))
		}
		r.client.HSet(r.ctx, "WAITING_QUEUE_INDEX_RECORD:{"+r.event+"}", "user-0", "no json")
		r.client.HSet(r.ctx, "ENTRY_RECORD:{"+r.event+"}", "user-1", `{"jti":3}`)
		r.client.HSet(r.ctx, "WAITING_LEFT:{"+r.event+"}", "user-1", `{"void":"x"`)
		promoted, aside := 0, 0
		for range 5 {
			tick := r.tick()
			for promoted, aside = promoted+tick.Promoted, aside+tick.Aside; tick.More; promoted, aside = promoted+tick.Promoted, aside+tick.Aside {
				var err error
				tick, err = r.rooms.Tick(r.ctx, r.event)
				require.NoError(t, err)
				require.True(t, tick.Ran, "more to do")
			}
		}
		require.Equal(t, 6, aside, "user-0 has its place")
		require.Equal(t, 2, promoted)
		require.EqualValues(t, 6, r.client.HLen(r.ctx, "WAITING_ASIDE:{"+r.event+"}").Val())
		r.client.HSet(r.ctx, "ENTRY_RECORD:{"+r.event+"}", "user-1", "broken")
		r.pass(3 * time.Minute)
		require.Equal(t, 2, r.tick().Ended[Expired], "a slot whose record is broken comes back, too")
	})
}

// A broker that signed before neither outage has an end from before both.
func TestTwoOutagesInARowAddUp(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		p := r.admitted("u1")
		for range 2 {
			r.outage(time.Minute)
			require.Equal(t, 61*time.Second, r.tick().Gap)
		}
		r.client.Del(r.ctx, "ENTRY_LEASES:{"+r.event+"}", "ENTRY_RECORD:{"+r.event+"}", "ENTRY_TOKEN:{"+r.event+"}:u1")
		got := r.seen(Sign{User: "u1", Index: p.Index, JTI: p.JTI, Until: p.Until})[0]
		require.Equal(t, "restored", got.How)
		require.Equal(t, p.Until+122_000, got.Until)
	})
}
