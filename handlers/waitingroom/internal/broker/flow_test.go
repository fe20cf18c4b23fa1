package broker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// One of two brokers and one of two dispatchers are killed. All users are promoted in the order of
// their indexes, and each buys with one lease. No slot is lost or used twice.
func TestACrowdGetsThroughWhileInstancesAreKilled(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		const users, slots = 200, 10
		w := newWorld(t, s)
		w.open(users, slots)
		// A group that reads nothing delays the trimming.
		require.NoError(t, w.admin.XGroupCreateMkStream(t.Context(), w.key1("ENTRY"), "observer", "0").Err())
		brokers := []*process{w.start("broker-1", "broker"), w.start("broker-2", "broker")}
		dispatchers := []*process{w.start("dispatcher-1", "dispatcher"), w.start("dispatcher-2", "dispatcher")}

		var most, sold atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		var watching sync.WaitGroup
		watching.Go(func() {
			for ctx.Err() == nil {
				most.Store(max(most.Load(), w.admin.ZCard(context.Background(), w.key1("ENTRY_LEASES")).Val()))
				<-time.After(time.Millisecond)
			}
		})
		guests := map[string]*guest{}
		for i := range users {
			g := w.guest(fmt.Sprintf("user-%d", i))
			g.promoted = func(jti string) {
				if _, err := w.rooms.Verify(context.Background(), w.event, g.name, jti, "session"); err != nil {
					t.Errorf("%s: verify: %v", g.name, err)
				}
				if _, err := w.rooms.Finish(context.Background(), w.event, g.name, jti, "session", true); err != nil {
					t.Errorf("%s: finish: %v", g.name, err)
				}
				switch sold.Add(1) {
				case users / 4:
					dispatchers[0].kill()
				case users / 2:
					brokers[0].kill()
				}
			}
			guests[g.name] = g
			g.run()
		}
		for _, g := range guests {
			g.ends()
		}
		cancel()
		watching.Wait()
		require.EqualValues(t, users, sold.Load())
		require.LessOrEqual(t, most.Load(), int64(slots))
		require.True(t, dispatchers[0].killed && brokers[0].killed)

		entries, err := w.admin.XRange(t.Context(), w.key1("ENTRY"), "-", "+").Result()
		require.NoError(t, err)
		require.Len(t, entries, users, "each user is promoted once")
		last := int64(0)
		for _, e := range entries {
			g := guests[e.Values["userId"].(string)]
			require.Greater(t, g.idx(), last, "in the order of the indexes")
			last = g.idx()
		}
		status, err := w.rooms.RoomStatus(t.Context(), w.event)
		require.NoError(t, err)
		require.Equal(t, []int64{users, 0, 0, 0}, []int64{status.Sold, status.Waiting, status.Ready, status.Admitted})
		for _, p := range append(brokers, dispatchers...) {
			require.Empty(t, p.dead.Messages())
		}
	})
}
