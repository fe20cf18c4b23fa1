package promotion_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A promotion whose stream belongs to another deployment waits in the ledger, and the others are
// paid. It is paid when its stream is handed over.
func TestAStreamThatAnotherDeploymentOwns(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			c.Feeder.GracePeriod, c.Feeder.SweepInterval = time.Hour, 50*time.Millisecond
			c.Stream.ReconcileInterval = 50 * time.Millisecond
		})
		const stream, meta = "campaign-promotion-stream:POINT:1", "{campaign-promotion-stream:POINT:1}:meta"
		require.NoError(t, sys.redis.XGroupCreateMkStream(t.Context(), stream, "campaign-promotion-group:POINT:1", "0").Err())
		require.NoError(t, sys.redis.HSet(t.Context(), meta, "incarnation", "i", "owner", "production").Err())
		stop := pipelinetest.StartUntil(t, middleware.Options{}, sys.all...)
		sys.payTheOther()
		require.Zero(t, sys.redis.XLen(t.Context(), stream).Val())
		require.NoError(t, stop()) // the commands use the same plugins
		require.Contains(t, sys.says(0, "campaign", "status", "POINT", "1"), "belongs to the deployment with the ledger id production")
		var all struct{ Promotions []campaign.Status }
		sys.json(&all, "campaign", "status", "POINT", "1", "--json")
		require.Equal(t, "production", all.Promotions[0].ForeignOwner)

		require.NoError(t, sys.redis.HDel(t.Context(), meta, "owner").Err())
		sys.start()
		sys.payBoth()
		id, err := sys.ledger.ID(t.Context())
		require.NoError(t, err)
		owner, err := sys.redis.HGet(t.Context(), "{campaign-promotion-stream:POINT:2}:meta", "owner").Result()
		if err == nil { // it may have been deleted as idle
			require.Equal(t, id, owner)
		}
	})
}
