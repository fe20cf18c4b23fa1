package promotion_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A promotion whose stream belongs to another deployment waits in the ledger; the others are paid, and it is paid when its
// stream is handed over.
func TestAStreamThatAnotherDeploymentOwns(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, func(c *promotion.Config) {
			c.Feeder.Grace, c.Feeder.Sweep = time.Hour, 50*time.Millisecond
			c.Stream.Refresh = 50 * time.Millisecond
		})
		const stream, meta = "campaign-promotion-stream:POINT:1", "{campaign-promotion-stream:POINT:1}:meta"
		require.NoError(t, tw.redis.XGroupCreateMkStream(t.Context(), stream, "campaign-promotion-group:POINT:1", "0").Err())
		require.NoError(t, tw.redis.HSet(t.Context(), meta, "incarnation", "i", "owner", "production").Err())
		stop := pipelinetest.StartUntil(t, middleware.Options{}, tw.all...)
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
		require.Zero(t, tw.redis.XLen(t.Context(), stream).Val())
		require.NoError(t, stop()) // the commands use the same plugins
		require.Contains(t, tw.says(0, "campaign", "status", "POINT", "1"), "belongs to the deployment with the ledger id production")
		var all []promotion.Status
		tw.json(&all, "campaign", "status", "POINT", "1", "--json")
		require.Equal(t, "production", all[0].ForeignOwner)

		require.NoError(t, tw.redis.HDel(t.Context(), meta, "owner").Err())
		tw.start()
		require.EqualValues(t, 300, tw.settle("POINT", 300).Paid)
		require.Equal(t, 320, tw.api.Summary().Charged)
		require.Zero(t, tw.api.Summary().DoubleCharged)
		id, err := tw.ledger.ID(t.Context())
		require.NoError(t, err)
		owner, err := tw.redis.HGet(t.Context(), "{campaign-promotion-stream:POINT:2}:meta", "owner").Result()
		if err == nil { // it may have been deleted as idle
			require.Equal(t, id, owner)
		}
	})
}
