package promotion_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/reconcile"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

func (sys *system) add(stream, payload string) {
	sys.t.Helper()
	require.NoError(sys.t, sys.redis.XAdd(sys.t.Context(), &redis.XAddArgs{Stream: stream, Values: []string{"message", payload}}).Err())
}

// dead waits until n dead letters wait for a person, and returns them.
func (sys *system) dead(n int) (list []store.DeadLetter) {
	sys.t.Helper()
	require.Eventually(sys.t, func() bool {
		copies, err := store.Connect(sys.t.Context(), sqldb.Databases{}, sys.letters, nil)
		require.NoError(sys.t, err)
		defer func() { require.NoError(sys.t, copies.Close()) }()
		list, _, err = copies.List(sys.t.Context(), store.Filter{}, 100)
		require.NoError(sys.t, err)
		return len(list) >= n
	}, 2*time.Minute, 50*time.Millisecond, "%d dead letters", n)
	return list
}

// Only records of the publish topic announce payouts: foreign entries and retry records are dead
// letters, and a person may replay one.
func TestForeignMessagesArePaidByNobody(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			c.Feeder.SweepInterval, c.Feeder.GracePeriod = 100*time.Millisecond, 200*time.Millisecond
		})
		stop := pipelinetest.StartUntil(t, middleware.Options{}, sys.all...)
		const stream = "campaign-promotion-stream:POINT:1"
		sys.add("campaign-promotion-stream:POINT:7", points(90, 90)[0]) // of no promotion
		// a retry record of no payout
		sys.send("campaign-promotion-point-retry", points(50, 50)...)
		sys.send(publish, points(1, 1)...) // what was announced
		sys.settle("POINT", 1)
		require.NoError(t, sys.ledger.Activate(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 0))
		sys.add(stream, points(51, 51)[0]) // an entry of no payout
		// on another promotion's stream
		sys.add(stream, `{"promotionId":2,"promotionSummaryId":9,"targetId":1,"amount":10}`)
		list := sys.dead(3)
		byClass := map[string][]string{}
		for _, l := range list {
			byClass[l.Class] = append(byClass[l.Class], l.Subject)
		}
		require.ElementsMatch(t, []string{"POINT:1:50", "POINT:1:51"}, byClass["unannounced"])
		require.Len(t, byClass["wrong_stream"], 1)
		require.Equal(t, 1, sys.api.Summary().Executed)
		require.EqualValues(t, 1, sys.counts("POINT").Accepted)
		_, err := sys.ledger.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 7})
		require.ErrorIs(t, err, ledger.ErrNotFound, "a stream makes no promotion")

		require.NoError(t, stop())
		for _, l := range list {
			if l.Subject == "POINT:1:51" {
				sys.says(app.ExitUsage, "deadletter", "replay", l.ID)
				sys.says(app.ExitOK, "deadletter", "replay", l.ID, "--why", "the ledger was restored from a backup", "--who", "ann")
			}
		}
		stop = pipelinetest.StartUntil(t, middleware.Options{}, sys.all...)
		require.EqualValues(t, 2, sys.settle("POINT", 2).Paid)
		require.EqualValues(t, 520, sys.api.Summary().Sum)
		require.NoError(t, stop())
		require.Contains(t, sys.says(app.ExitOK, "campaign", "explain", "POINT", "1", "51"), "ann")
		var r reconcile.Report
		sys.json(&r, "campaign", "reconcile", "POINT", "1")
		require.True(t, r.Balanced)
		require.EqualValues(t, 1, r.Buckets["announced_by_replay"])
	})
}
