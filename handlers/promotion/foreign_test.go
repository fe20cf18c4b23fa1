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

// A consumer group without readers delays a campaign for its grace only. `campaign status` names
// it.
func TestAForgottenGroupDoesNotStallACampaign(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			c.Stream.MaxLen, c.Stream.ReconcileInterval, c.Stream.ForeignGroupGrace = 20, 50*time.Millisecond, 500*time.Millisecond
			c.Stream.IdleTimeout = time.Hour
			c.Feeder.GracePeriod = time.Hour
		})
		require.NoError(t, sys.redis.XGroupCreateMkStream(t.Context(), "campaign-promotion-stream:POINT:1", "debug", "0").Err())
		stop := pipelinetest.StartUntil(t, middleware.Options{}, sys.all...)
		sys.send(publish, points(1, 100)...)
		require.EqualValues(t, 100, sys.settle("POINT", 100).Paid)
		require.NoError(t, stop()) // the commands use the same plugins
		require.Contains(t, sys.says(0, "campaign", "status", "POINT", "1"), "debug has delayed trimming and deletion")
		var all struct{ Promotions []campaign.Status }
		sys.json(&all, "campaign", "status", "POINT", "1", "--json")
		require.Equal(t, "debug", all.Promotions[0].DelayingGroups[0].Group)
	})
}
