package promotion_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
	"github.com/millrace-io/millrace/plugins/reclaim"
)

// Entries that somebody deletes while a dead instance has them pending are reported, and their payouts enqueued again
// from the ledger: all are paid, each once.
func TestWhatWasDeletedWhilePendingIsEnqueuedAgain(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, nil)
		const stream, group = "campaign-promotion-stream:POINT:1", "campaign-promotion-group:POINT:1"
		require.NoError(t, tw.redis.XGroupCreateMkStream(t.Context(), stream, group, "0").Err())
		var ids []string
		for i, payload := range points(1, 5) {
			accepted, err := tw.ledger.Accept(t.Context(), ledger.Record{
				Key: ledger.Key{Type: "POINT", Promotion: 1, Target: int64(i + 1)}, SummaryID: 9, Payload: []byte(payload), Origin: "test",
			}, false)
			require.NoError(t, err)
			require.Equal(t, ledger.Enqueue, accepted.Next)
			id, err := tw.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: []string{"message", payload}}).Result()
			require.NoError(t, err)
			ids = append(ids, id)
		}
		require.NoError(t, tw.ledger.Activate(t.Context(), ledger.Promotion{Type: "POINT", ID: 1}, 5))
		require.NoError(t, tw.redis.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: group, Consumer: "killed-9-0", Streams: []string{stream, ">"}, Count: 4, Block: -1}).Err())
		require.NoError(t, tw.redis.XDel(t.Context(), stream, ids[1], ids[2]).Err())

		var mu sync.Mutex
		var told []string
		for _, p := range tw.all {
			if claims, ok := p.(*reclaim.Plugin); ok {
				cfg, _ := claims.Settings().(*reclaim.Config)
				cfg.DeadCheck, cfg.DeadAfter = 20*time.Millisecond, 100*time.Millisecond
				claims.OnLost(func(stream string, ids []string) {
					mu.Lock()
					defer mu.Unlock()
					for _, id := range ids {
						told = append(told, fmt.Sprint(stream, "@", id))
					}
				})
			}
		}
		tw.start()
		require.EqualValues(t, 5, tw.settle("POINT", 5).Paid)
		require.Equal(t, 5, tw.api.Summary().Charged)
		require.Zero(t, tw.api.Summary().DoubleCharged)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []string{stream + "@" + ids[1], stream + "@" + ids[2]}, told)
	})
}
