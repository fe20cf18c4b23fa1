package broker_test

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

// While Redis is unavailable a stream stays open, and says again how old its position is. After the
// outage the position is right.
func TestAPositionSaysHowOldItIs(t *testing.T) {
	tier.Rest(t) // an old position comes again after 10 s
	each(t, func(t *testing.T, s redistest.Server) {
		type shown struct{ Position, AsOf int64 }
		w := newWorld(t, s)
		p := w.start("broker", "broker")
		w.start("dispatcher", "dispatcher")
		w.open(10, 1)
		w.guest("first").run().wait("promoted")
		w.guest("second").run().wait("position 1")
		var mu sync.Mutex
		var list []shown
		g := w.guest("third")
		take := g.client.Event
		g.client.Event = func(e ssetest.Event) error {
			var one shown
			if e.Name == "position" && json.Unmarshal([]byte(e.Data), &one) == nil {
				mu.Lock()
				list = append(list, one)
				mu.Unlock()
			}
			return take(e)
		}
		last := func() (one, before shown) {
			mu.Lock()
			defer mu.Unlock()
			if len(list) < 2 {
				return one, before
			}
			return list[len(list)-1], list[len(list)-2]
		}
		g.run().wait("position 2")
		p.toRedis.SetDown(true)
		var old shown
		require.Eventually(t, func() bool {
			one, before := last()
			old = one
			return one.AsOf > 0 && one == before
		}, 2*time.Minute, 50*time.Millisecond, "the same position again")
		require.EqualValues(t, 2, old.Position)
		_, err := w.rooms.Leave(t.Context(), w.event, "second", "left")
		require.NoError(t, err)
		one, _ := last()
		require.Equal(t, old, one)
		p.toRedis.SetDown(false)
		redistest.Eventually(t, "a new position", func() bool {
			one, _ := last()
			return one.Position == 1 && one.AsOf > old.AsOf
		})
		require.Equal(t, 1, g.count("connected *"))
		got, err := w.rooms.Status(t.Context(), w.event, "third")
		require.NoError(t, err)
		require.Equal(t, []any{room.Waiting, g.idx()}, []any{got.State, got.Index})
	})
}
