package promotion_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// runningKey is the hash in which the instances write that pay.
const runningKey = "millrace:promotion:instances"

// An instance that was killed leaves its field behind: it is stale after 15 s, and another one removes it after an hour.
func TestWhatKilledInstancesLeaveBehind(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		at := func(age time.Duration) string {
			return strconv.FormatInt(time.Now().Add(-age).UnixMilli(), 10) + ` {"client":{"breaker":"closed"}}`
		}
		require.NoError(t, sys.redis.HSet(t.Context(), runningKey, "stale", at(time.Minute), "old", at(2*time.Hour), "odd", "x", "lives", at(0)).Err())
		stop := pipelinetest.StartUntil(t, middleware.Options{}, sys.all...)
		require.Eventually(t, func() bool {
			fields, err := sys.redis.HKeys(t.Context(), runningKey).Result()
			return err == nil && len(fields) == 3
		}, 2*time.Minute, 20*time.Millisecond, "what is old or can't be read is removed")
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(1)}, ledger.AcceptOptions{})[0].Err)
		sys.settle("POINT", 1)
		require.NoError(t, stop()) // the command uses the same plugins
		require.NoError(t, sys.redis.HSet(t.Context(), runningKey, "lives", at(0)).Err())
		text := sys.says(app.ExitOK, "campaign", "status", "POINT", "1")
		require.Contains(t, text, "  lives ")
		require.NotContains(t, text, "  stale ")
	})
}
