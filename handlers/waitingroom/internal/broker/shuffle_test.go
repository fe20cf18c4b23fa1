package broker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The users of a pre-queue are promoted in the order of the audit, and those who come later follow.
// One of two brokers is killed before the draw.
func TestACrowdOfAPreQueueIsPromotedInTheDrawnOrder(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		const users, slots = 80, 5
		w := newWorld(t, s)
		mode, capacity, concurrency := room.Shuffle, int64(users+1), int64(slots)
		w.control(room.Change{Verb: room.Open, Mode: &mode, Capacity: &capacity, Concurrency: &concurrency})
		require.NoError(t, w.admin.XGroupCreateMkStream(t.Context(), w.key1("ENTRY"), "observer", "0").Err())
		first := w.start("broker-1", "broker")
		w.start("broker-2", "broker")
		w.start("dispatcher-1", "dispatcher")
		w.start("dispatcher-2", "dispatcher")

		join := func(name string) *guest {
			g := w.guest(name)
			g.shuffled = true
			g.promoted = func(jti string) {
				if _, err := w.rooms.Finish(context.Background(), w.event, g.name, jti, "", true); err != nil {
					t.Errorf("%s: finish: %v", g.name, err)
				}
			}
			return g.run()
		}
		var guests []*guest
		for i := range users {
			guests = append(guests, join(fmt.Sprintf("user-%d", i)))
		}
		for _, g := range guests {
			g.wait("position 0")
		}
		var polled map[string]any
		require.NoError(t, json.Unmarshal([]byte(w.send("GET", w.path()+"/status", "user-7").body), &polled))
		for _, name := range []string{"position", "ahead", "waitSeconds"} {
			require.Contains(t, polled, name)
			require.Nil(t, polled[name], name)
		}
		require.Equal(t, room.PreQueue, polled["roomState"])
		status, err := w.rooms.RoomStatus(t.Context(), w.event)
		require.NoError(t, err)
		require.Equal(t, status.Commitment, polled["commitment"])
		first.kill()
		w.control(room.Change{Verb: room.Open})
		redistest.Eventually(t, "the draw begins", func() bool {
			status, err := w.rooms.RoomStatus(t.Context(), w.event)
			return err == nil && status.State != room.PreQueue
		})
		guests = append(guests, join("late"))
		for _, g := range guests {
			g.ends()
			require.True(t, g.seen("closed sold"), "%s: %v", g.name, g.events)
		}

		a, err := w.rooms.Shuffle(t.Context(), w.event)
		require.NoError(t, err)
		require.NoError(t, a.Verify())
		require.Equal(t, polled["commitment"], a.Commitment)
		entries, err := w.admin.XRange(t.Context(), w.key1("ENTRY"), "-", "+").Result()
		require.NoError(t, err)
		require.Len(t, entries, users+1)
		for i, e := range entries[:users] {
			require.Equal(t, i+1, a.Place(e.Values["userId"].(string)))
		}
		require.Equal(t, "late", entries[users].Values["userId"])
	})
}
