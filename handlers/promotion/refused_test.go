package promotion_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
)

// A stream key that Redis refuses delays its own promotion alone: the records of both are accepted, the other promotion is
// paid, and the first one is paid when its key is free.
func TestAKeyThatRedisRefuses(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, func(c *promotion.Config) { c.Feeder.Grace = time.Hour })
		const key = "campaign-promotion-stream:POINT:1"
		require.NoError(t, tw.redis.Set(t.Context(), key, "x", 0).Err())
		tw.start()
		tw.send(publish, points(1, 300)...) // more than one partition's window
		var others []string
		for target := range 20 {
			others = append(others, fmt.Sprintf(`{"promotionId":2,"promotionSummaryId":9,"targetId":%d,"amount":10}`, target+1))
		}
		tw.send(publish, others...) // same record key, so the same partition
		require.Eventually(t, func() bool {
			c, err := tw.ledger.Status(t.Context(), ledger.Promotion{Type: "POINT", ID: 2})
			return err == nil && c.Paid == 20
		}, 30*time.Second, 20*time.Millisecond, "the other promotion is paid meanwhile")
		require.EqualValues(t, 300, tw.counts("POINT").Pending)
		require.NoError(t, tw.redis.Del(t.Context(), key).Err())
		require.EqualValues(t, 300, tw.settle("POINT", 300).Paid)
		require.Equal(t, 320, tw.api.Summary().Charged)
		require.Zero(t, tw.api.Summary().DoubleCharged)
	})
}
