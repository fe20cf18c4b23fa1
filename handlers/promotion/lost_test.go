package promotion_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/reclaim"
)

// Entries are deleted while a dead instance has them pending. They are reported, and the feeder
// enqueues their payouts again: all are paid, each once.
func TestWhatWasDeletedWhilePendingIsEnqueuedAgain(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		const stream, group = "campaign-promotion-stream:POINT:1", "campaign-promotion-group:POINT:1"
		require.NoError(t, sys.redis.XGroupCreateMkStream(t.Context(), stream, group, "0").Err())
		var ids []string
		for i, payload := range points(1, 5) {
			accepted := sys.ledger.Accept(t.Context(), []payouts.Record{{
				Key: payouts.Key{Type: "POINT", Promotion: 1, Target: int64(i + 1)}, SummaryID: 9, Payload: []byte(payload), Origin: "test",
			}}, ledger.AcceptOptions{})[0]
			require.Equal(t, rules.Enqueue, accepted.Next)
			id, err := sys.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: []string{"message", payload}}).Result()
			require.NoError(t, err)
			ids = append(ids, id)
		}
		require.NoError(t, sys.ledger.Activate(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 5))
		// The instance killed-9 had a presence, and has none now.
		require.NoError(t, sys.redis.HSet(t.Context(), "millrace:instances", "killed-9", time.Now().UnixMilli()).Err())
		require.NoError(t, sys.redis.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: group, Consumer: "killed-9-0", Streams: []string{stream, ">"}, Count: 4, Block: -1}).Err())
		require.NoError(t, sys.redis.XDel(t.Context(), stream, ids[1], ids[2]).Err())

		var mu sync.Mutex
		var told []string
		for _, p := range sys.all {
			if claims, ok := p.(*reclaim.Plugin); ok {
				cfg, _ := claims.Settings().(*reclaim.Config)
				cfg.DeadCheck, cfg.PresenceTimeout = 20*time.Millisecond, 100*time.Millisecond
				claims.OnLost(func(stream string, ids []string) {
					mu.Lock()
					defer mu.Unlock()
					for _, id := range ids {
						told = append(told, fmt.Sprint(stream, "@", id))
					}
				})
			}
		}
		sys.start()
		require.EqualValues(t, 5, sys.settle("POINT", 5).Paid)
		require.Equal(t, 5, sys.api.Summary().Executed)
		require.Zero(t, sys.api.Summary().Doubled)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []string{stream + "@" + ids[1], stream + "@" + ids[2]}, told)
	})
}

// Redis is wiped while records keep coming, so that the stream is never drained. The payouts that
// were in it are enqueued again all the same. In the second case no feeder has seen the stream
// before it is lost.
func TestAWipeIsNoticedWhileRecordsComeIn(t *testing.T) {
	for name, interval := range map[string]time.Duration{"after the first look": 100 * time.Millisecond, "before the first look": 1500 * time.Millisecond} {
		t.Run("embedded, "+name, func(t *testing.T) {
			sys := newSystem(t, simulator.Faults{Latency: 10 * time.Millisecond}, func(c *promotion.Config) {
				c.Stream.MinConsumers, c.Stream.MaxConsumers = 1, 1
				c.Feeder.Interval, c.Feeder.GracePeriod = interval, 100*time.Millisecond
			}).start()
			const first = 60
			sys.send(publish, points(1, first)...)
			require.Eventually(t, func() bool { return sys.counts("POINT").Accepted == first && sys.counts("POINT").Paid > 0 }, 2*time.Minute, time.Millisecond)
			if interval < time.Second { // a feeder has looked
				require.Eventually(t, func() bool {
					token, err := sys.ledger.Incarnation(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
					return err == nil && token != ""
				}, 2*time.Minute, time.Millisecond)
			}
			require.NoError(t, sys.redis.FlushAll(t.Context()).Err())

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			tick := time.NewTicker(5 * time.Millisecond) // twice as fast as the slot
			defer tick.Stop()
			for next, left := first+1, first; left > 0; next++ {
				select {
				case <-tick.C:
				case <-ctx.Done():
					require.Zero(t, left, "payouts of the lost stream are not paid while others are")
				}
				sys.send(publish, points(next, next)...)
				if next%20 > 0 {
					continue
				}
				left = 0
				require.NoError(t, sys.ledger.EachPayout(ctx, payouts.Promotion{Type: "POINT", ID: 1}, func(e ledger.Payout) error {
					if e.Target <= first && !e.State.Settled() {
						left++
					}
					return nil
				}))
			}
			require.Zero(t, sys.api.Summary().Doubled)
		})
	}
}
