package broker_test

import (
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The users of 99 events buy while another event can not be read. The broken event is reported, and
// its users keep their places until it is repaired. It needs the processor, so no other test runs
// at the same time.
func TestABrokenEventStopsNoneOfAHundred(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		const events = 100
		w := newWorld(t, s)
		w.options.PromoteInterval, w.log = time.Second, &redistest.Lines{}
		var dispatchers []*process
		for i := range 2 {
			w.start(fmt.Sprint("broker-", i), "broker")
			dispatchers = append(dispatchers, w.start(fmt.Sprint("dispatcher-", i), "dispatcher"))
		}
		name := func(i int) string { return fmt.Sprint("event-", i) }
		var guests []*guest
		for i := range events {
			w.event = name(i)
			w.open(10, 1)
			w.control(room.Change{Verb: room.Hold})
			for _, user := range []string{fmt.Sprint("first-", i), fmt.Sprint("second-", i)} {
				g := w.guest(user)
				g.promoted = func(jti string) {
					a, err := w.shopOf(name(i), "finish", map[string]string{"token": g.ticket(0).Token, "result": "sold"})
					if err != nil || a.status != 200 {
						t.Errorf("%s: %v, %v", user, a, err)
					}
				}
				guests = append(guests, g.run())
			}
		}
		for _, g := range guests {
			g.wait("connected WAITING")
		}
		broken := w.in(name(0), "late")
		require.NoError(t, w.admin.Rename(t.Context(), "WAITING:{event-0}", "kept:{event-0}").Err())
		require.NoError(t, w.admin.Set(t.Context(), "WAITING:{event-0}", "text", 0).Err())
		require.NoError(t, w.admin.ZAdd(t.Context(), "WAITING:{event-1}", goredis.Z{Score: 1, Member: "bad"}).Err())
		require.NoError(t, w.admin.XAdd(t.Context(), &goredis.XAddArgs{Stream: room.EntryStream(name(2)), Values: []string{"a", "b"}}).Err())
		for i := 1; i < events; i++ {
			w.event = name(i)
			w.control(room.Change{Verb: room.Resume})
		}
		for _, g := range guests[2:] {
			g.wait("closed sold").ends()
		}
		for i := 1; i < events; i++ {
			got := w.statusOf(name(i))
			require.Equal(t, []int64{2, 0, 0}, []int64{got.Sold, got.Waiting, got.Ready + got.Admitted}, name(i))
		}
		require.EqualValues(t, 1, w.statusOf(name(1)).Aside)
		redistest.Eventually(t, "the broken entry is a dead letter", func() bool {
			return len(dispatchers[0].dead.Messages())+len(dispatchers[1].dead.Messages()) == 1
		})
		redistest.Eventually(t, "the broken event is reported", func() bool {
			return w.log.Count(`msg="tick of an event failed, trying again" event=event-0`) > 0
		})
		broken.run().wait("busy unavailable")
		for _, g := range guests[:2] {
			require.False(t, g.ended())
			require.Zero(t, g.count("promoted"))
		}
		if !tier.IsRest(t) {
			return // a repaired event promotes no user for 10 s
		}
		require.NoError(t, w.admin.Rename(t.Context(), "kept:{event-0}", "WAITING:{event-0}").Err())
		w.event = name(0)
		w.control(room.Change{Verb: room.Resume})
		for _, g := range guests[:2] {
			g.wait("closed sold").ends()
		}
		broken.wait("promoted")
	})
}
