package promotion_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/reconcile"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter/store"
)

func (tw *town) add(stream, payload string) {
	tw.t.Helper()
	require.NoError(tw.t, tw.redis.XAdd(tw.t.Context(), &redis.XAddArgs{Stream: stream, Values: []string{"message", payload}}).Err())
}

// dead waits until n dead letters wait for a person, and returns them.
func (tw *town) dead(n int) (list []store.DeadLetter) {
	tw.t.Helper()
	require.Eventually(tw.t, func() bool {
		copies, err := store.Connect(tw.t.Context(), tw.letters, nil)
		require.NoError(tw.t, err)
		defer func() { require.NoError(tw.t, copies.Close()) }()
		list, _, err = copies.List(tw.t.Context(), store.Filter{}, 100)
		require.NoError(tw.t, err)
		return len(list) >= n
	}, 30*time.Second, 50*time.Millisecond, "%d dead letters", n)
	return list
}

// Only records of the publish topic announce payouts: foreign entries and retry records are dead letters, and a person may
// replay one.
func TestForeignMessagesArePaidByNobody(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, simulator.Faults{}, func(c *promotion.Config) {
			c.Feeder.SweepInterval, c.Feeder.GracePeriod = 100*time.Millisecond, 200*time.Millisecond
		})
		stop := pipelinetest.StartUntil(t, middleware.Options{}, tw.all...)
		const stream = "campaign-promotion-stream:POINT:1"
		tw.add("campaign-promotion-stream:POINT:7", points(90, 90)[0]) // of no promotion
		tw.send("campaign-promotion-point-retry", points(50, 50)...)   // a retry record of no payout
		tw.send(publish, points(1, 1)...)                              // what was announced
		tw.settle("POINT", 1)
		require.NoError(t, tw.ledger.Activate(t.Context(), rules.Promotion{Type: "POINT", ID: 1}, 0))
		tw.add(stream, points(51, 51)[0])                                                   // an entry of no payout
		tw.add(stream, `{"promotionId":2,"promotionSummaryId":9,"targetId":1,"amount":10}`) // on another promotion's stream
		list := tw.dead(3)
		byClass := map[string][]string{}
		for _, l := range list {
			byClass[l.Class] = append(byClass[l.Class], l.Subject)
		}
		require.ElementsMatch(t, []string{"POINT:1:50", "POINT:1:51"}, byClass["unannounced"])
		require.Len(t, byClass["wrong_stream"], 1)
		require.Equal(t, 1, tw.api.Summary().Charged)
		require.EqualValues(t, 1, tw.counts("POINT").Accepted)
		_, err := tw.ledger.Status(t.Context(), rules.Promotion{Type: "POINT", ID: 7})
		require.ErrorIs(t, err, ledger.ErrNotFound, "a stream makes no promotion")

		require.NoError(t, stop())
		for _, l := range list {
			if l.Subject == "POINT:1:51" {
				tw.says(app.ExitUsage, "deadletter", "replay", l.ID)
				tw.says(app.ExitOK, "deadletter", "replay", l.ID, "--why", "the ledger was restored from a backup", "--who", "ann")
			}
		}
		stop = pipelinetest.StartUntil(t, middleware.Options{}, tw.all...)
		require.EqualValues(t, 2, tw.settle("POINT", 2).Paid)
		require.EqualValues(t, 520, tw.api.Summary().Amount)
		require.NoError(t, stop())
		require.Contains(t, tw.says(app.ExitOK, "campaign", "explain", "POINT", "1", "51"), "ann")
		var r reconcile.Report
		tw.json(&r, "campaign", "reconcile", "POINT", "1")
		require.True(t, r.Balanced)
		require.EqualValues(t, 1, r.Buckets["announced_by_replay"])
	})
}
