package broker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// W39: after a failover without the claim, a shop would refuse the token.
func TestATokenIsShownOnlyWhenAReplicaHasTheClaim(t *testing.T) {
	t.Parallel()
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		replica := s.Replica()
		w := newWorld(t, s.Server)
		w.options.Replicas, w.options.ReplicaWait = 1, 50*time.Millisecond
		w.open(1, 1)
		w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.control(room.Change{Verb: room.Hold})
		g := w.guest("user").run().wait("connected WAITING")
		replica.SetPaused(true)
		_, err := w.rooms.Control(t.Context(), w.event, room.Change{Verb: room.Resume, By: "test"})
		require.NoError(t, err)
		// A promotion and a claim without the replica, as when it stops during the calls. The
		// dispatcher may be the one that promotes.
		redistest.Eventually(t, "promoted", func() bool {
			_, err := w.rooms.Tick(t.Context(), w.event)
			require.NoError(t, err)
			return w.admin.ZCard(t.Context(), w.key1("ENTRY_LEASES")).Val() == 1
		})
		_, err = w.rooms.Claim(t.Context(), w.event, "broker", []room.Sign{{User: "user"}})
		require.NoError(t, err)
		tab := w.guest("user").run().wait("connected ADMITTED")
		require.Equal(t, "503 unavailable", w.sendOnce("GET", w.path()+"/status", "user").word())
		require.Equal(t, "503 unavailable", w.sendOnce("GET", w.path(), "user").word())
		require.Zero(t, g.count("promoted"))
		require.Zero(t, tab.count("promoted"))
		replica.SetPaused(false)
		g.wait("promoted")
		tab.wait("promoted")
		require.NotEmpty(t, w.send("GET", w.path()+"/status", "user").place(t).Token)
	})
}
