package promotion_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
)

// A stream key that Redis refuses delays its own promotion alone. The records of both are accepted,
// and the other promotion is paid. The first one is paid when its key is free.
func TestAKeyThatRedisRefuses(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) { c.Feeder.GracePeriod = time.Hour })
		const key = "campaign-promotion-stream:POINT:1"
		require.NoError(t, sys.redis.Set(t.Context(), key, "x", 0).Err())
		sys.start()
		sys.payTheOther()
		require.NoError(t, sys.redis.Del(t.Context(), key).Err())
		sys.payBoth()
	})
}

// payTheOther sends 300 payouts of promotion 1, whose stream can't be used, and 20 of promotion 2,
// which are paid.
func (sys *system) payTheOther() {
	sys.t.Helper()
	sys.send(publish, points(1, 300)...) // more than one partition's window
	var others []string
	for target := range 20 {
		others = append(others, fmt.Sprintf(`{"promotionId":2,"promotionSummaryId":9,"targetId":%d,"amount":10}`, target+1))
	}
	sys.send(publish, others...) // same record key, so the same partition
	require.Eventually(sys.t, func() bool {
		c, err := sys.ledger.Status(sys.t.Context(), payouts.Promotion{Type: "POINT", ID: 2})
		return err == nil && c.Paid == 20
	}, 2*time.Minute, 20*time.Millisecond, "the other promotion is paid meanwhile")
	require.EqualValues(sys.t, 300, sys.counts("POINT").Pending)
}

// payBoth waits until promotion 1 is paid, too, and checks the Money API's charges.
func (sys *system) payBoth() {
	sys.t.Helper()
	require.EqualValues(sys.t, 300, sys.settle("POINT", 300).Paid)
	require.Equal(sys.t, 320, sys.api.Summary().Executed)
	require.Zero(sys.t, sys.api.Summary().Doubled)
}
