package room

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestUsersArePromotedInTheirOrder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 3)
		r.enterAll(5)
		again := r.enter("user-4")
		require.Equal(t, "attached", again.How)
		require.EqualValues(t, 4, again.Ahead)
		got := r.tick()
		require.Equal(t, 3, got.Promoted)
		require.False(t, got.More)
		require.EqualValues(t, 2, got.Table.Waiting)
		require.EqualValues(t, 3, got.Table.Ready)
		for i, want := range []State{Ready, Ready, Ready, Waiting, Waiting} {
			p := r.status(fmt.Sprint("user-", i))
			require.Equal(t, want, p.State)
		}
		third, fourth := r.status("user-2"), r.status("user-3")
		require.Equal(t, third.Index, got.Table.Served)
		require.Greater(t, fourth.Index, got.Table.Served)
		require.Zero(t, fourth.Ahead)
		require.Zero(t, r.tick().Promoted, "no slot is free")

		claimed := r.claim("user-2")
		require.Equal(t, Admitted, claimed.State)
		require.Equal(t, third.JTI, claimed.JTI)
		require.Greater(t, claimed.Until, third.Until)
		r.outage(time.Second)
		require.Equal(t, claimed.Until, r.claim("user-2").Until, "a repeated claim extends nothing")
		require.Equal(t, Waiting, r.claim("user-3").State)
		entries := r.client.XRange(r.ctx, EntryStream(r.event), "-", "+").Val()
		require.Len(t, entries, 3)
		require.Equal(t, map[string]any{"userId": "user-0", "eventId": r.event, "instanceId": "broker-1"}, entries[0].Values)
		tables, err := r.rooms.Tables(r.ctx, []string{r.event, "no-such-event"})
		require.NoError(t, err)
		require.EqualValues(t, 2, tables[0].Waiting)
		require.Nil(t, tables[1])
	})
}

func TestATickDoesNothingAMomentAfterAnother(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 10)
		r.tick()
		r.enterAll(1)
		got, err := r.rooms.Tick(r.ctx, r.event)
		require.NoError(t, err)
		require.False(t, got.Ran)
		require.Equal(t, 1, r.tick().Promoted)
	})
}

// One event that is broken and one without a room fail alone.
func TestEachEventOfACallHasItsOwnResult(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		first, broken, last := newRig(t, s, 1), newRig(t, s, 1), newRig(t, s, 1)
		first.enter("u1")
		last.enter("u2")
		// All events have the clock of the first one, and the last one is younger.
		first.outage(3 * time.Second)
		require.NoError(t, broken.client.Del(t.Context(), keys(broken.event)[9]).Err())
		require.NoError(t, broken.client.Set(t.Context(), keys(broken.event)[9], "text", 0).Err())
		got := first.rooms.Ticks(t.Context(), []string{first.event, broken.event, "no-such-event", last.event})
		require.Len(t, got, 4)
		require.ErrorContains(t, got[1].Err, "WRONGTYPE")
		require.ErrorIs(t, got[2].Err, ErrUnknown)
		for _, i := range []int{0, 3} {
			require.NoError(t, got[i].Err)
			require.True(t, got[i].Ran)
			require.Equal(t, 1, got[i].Promoted)
			require.EqualValues(t, 1, got[i].Table.Ready)
		}
	})
}

// A key has another type than the scripts expect. A tick then fails before it takes a user off the
// queue.
func TestADamagedKeyTakesNoUserOffTheQueue(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for _, name := range []string{"WAITING_QUEUE_INDEX_RECORD", "WAITING_USER_IDS", "ENTRY", "ENTRY_LEASES", "ENTRY_RECORD", "WAITING_SEEN", "WAITING_ASIDE"} {
			r := newRig(t, s, 10)
			r.enterAll(3)
			damaged := name + ":{" + r.event + "}"
			require.NoError(t, r.client.Del(r.ctx, damaged).Err())
			require.NoError(t, r.client.Set(r.ctx, damaged, "text", 0).Err())
			r.outage(time.Second)
			_, err := r.rooms.Tick(r.ctx, r.event)
			require.ErrorContains(t, err, "WRONGTYPE", name)
			require.EqualValues(t, 3, r.client.ZCard(r.ctx, "WAITING:{"+r.event+"}").Val(), name)

			require.NoError(t, r.client.Del(r.ctx, damaged).Err())
			require.Equal(t, 3, r.tick().Promoted, "%s is repaired", name)
		}
	})
}
