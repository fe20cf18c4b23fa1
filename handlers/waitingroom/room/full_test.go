package room

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Signs of life are refused then, so their absence says nothing.
func TestAFullServerRemovesNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		lease := r.admitted("buyer")
		waits := r.enter("waits")
		r.enter("leaver")
		r.enter("kicked")
		require.NoError(t, r.client.Set(r.ctx, r.full(), "1", 0).Err())
		for range 200 {
			r.outage(time.Second)
			r.client.ZAdd(r.ctx, "WAITING_SEEN:{"+r.event+"}", z(0, "gone")) // to remove
			_, err := r.rooms.Tick(r.ctx, r.event)
			require.ErrorContains(t, err, "OOM")
		}
		_, err := r.rooms.Seen(r.ctx, r.event, "broker-1", []Sign{{User: "waits", Index: waits.Index}})
		require.ErrorContains(t, err, "OOM")
		_, err = r.rooms.Enter(r.ctx, r.event, "new", "broker-1", 0)
		require.ErrorContains(t, err, "OOM")
		_, err = r.rooms.Verify(r.ctx, r.event, "buyer", lease.JTI, "session")
		require.NoError(t, err, "a shop goes on")
		_, err = r.rooms.Extend(r.ctx, r.event, "buyer", lease.JTI, "session", lease.Until)
		require.NoError(t, err)
		_, err = r.finish("buyer", lease.JTI, true)
		require.NoError(t, err)
		require.Equal(t, "left", r.leave("leaver").Reason)
		r.control(Change{Verb: Kick, User: "kicked"})
		require.Equal(t, "kicked", r.status("kicked").Reason)

		require.NoError(t, r.client.Del(r.ctx, r.full()).Err())
		r.client.ZRem(r.ctx, "WAITING_SEEN:{"+r.event+"}", "gone")
		tick := r.tick()
		require.Equal(t, 201*time.Second, tick.Gap, "the time of the room stood still")
		require.Zero(t, tick.Removed)
		require.Equal(t, waits.Index, r.status("waits").Index)
		r.seen(Sign{User: "waits", Index: waits.Index})
		r.control(Change{Verb: Set, Capacity: p(int64(2))})
		r.pass(10 * time.Second)
		require.Equal(t, 1, r.tick().Promoted)
	})
}
