package promotion_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/redis"
)

// A call leaves its row only with its outcome. A missing row must not be read as a missing call.
func TestExplainNamesACallWithoutAStoredOutcome(t *testing.T) {
	const mayBe = "its outcome is not stored: it may have been charged"
	explain := func(sys *system) (text string, e campaign.Explained) {
		sys.json(&e, "campaign", "explain", "POINT", "1", "7")
		return sys.says(app.ExitOK, "campaign", "explain", "POINT", "1", "7"), e
	}
	open := func(t *testing.T, sys *system, instance string) (text string) {
		t.Helper()
		text, e := explain(sys)
		require.Equal(t, rules.Sending, e.State)
		require.Len(t, e.Calls, 1)
		require.True(t, e.Calls[0].Open())
		require.Equal(t, payouts.CallSend, e.Calls[0].Kind)
		require.Equal(t, instance, e.Calls[0].Instance)
		require.NotZero(t, e.Calls[0].StartedAt)
		require.Empty(t, e.Calls[0].Outcome)
		require.True(t, e.MaybeCharged)
		require.Equal(t, e.Calls[0].StartedAt, e.FirstSentAt)
		require.Contains(t, text, mayBe)
		require.Contains(t, text, "A call began at "+e.Calls[0].StartedAt.Format("2006-01-02T15:04:05.000Z")+", by instance "+instance)
		require.Contains(t, text, "perhaps charged")
		require.NotContains(t, text, "No call")
		return text
	}
	accept := func(t *testing.T, sys *system) {
		t.Helper()
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(7)}, ledger.AcceptOptions{})[0].Err)
	}

	t.Run("embedded/never begun", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		accept(t, sys)
		text, e := explain(sys)
		require.Empty(t, e.Calls)
		require.False(t, e.MaybeCharged)
		require.Contains(t, text, "No call of the Money API has begun")
		require.NotContains(t, text, "charged")
	})
	t.Run("embedded/a crash after the begin", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		accept(t, sys)
		crashed, err := ledger.Open(t.Context(), sys.payouts.Settings().(*promotion.Config).Ledger, ledger.Options{Instance: "crashed", Lease: time.Millisecond}, nil)
		require.NoError(t, err)
		b, err := crashed.Begin(t.Context(), pointRecord(7))
		require.NoError(t, err)
		require.Equal(t, rules.Send, b.Next)
		require.NoError(t, crashed.Close())
		require.Contains(t, open(t, sys, "crashed"), "crashed took it and did not settle it; its lease ended")

		// The next begin writes the row of the call that was lost.
		again, err := sys.ledger.Begin(t.Context(), pointRecord(7))
		require.NoError(t, err)
		text, e := explain(sys)
		require.Len(t, e.Calls, 2)
		require.Equal(t, rules.ClassLeaseExpired, e.Calls[0].Class)
		require.True(t, e.Calls[1].Open())
		require.Contains(t, text, "its lease ended without an answer; it may have been charged")
		require.NotContains(t, text, "interrupted")
		_, err = sys.ledger.Settle(t.Context(), payouts.CallResult{Key: pointRecord(7).Key, CallResult: rules.CallResult{Epoch: again.Epoch, Outcome: rules.Done, Receipt: "tx"}})
		require.NoError(t, err)
		text, e = explain(sys)
		require.Len(t, e.Calls, 2)
		require.False(t, e.Calls[1].Open())
		require.NotContains(t, text, mayBe)
	})
	t.Run("embedded/a call in flight", func(t *testing.T) {
		worker := newSystem(t, simulator.Faults{Silence: true}, nil)
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			c.Ledger.DSN = worker.payouts.Settings().(*promotion.Config).Ledger.DSN
		})
		sys.all[0].(*redis.Plugin).Settings().(*redis.Config).Addrs = []string{worker.servers.RedisAddr()}
		worker.start()
		worker.send("campaign-promotion-point-publish", string(pointRecord(7).Payload))
		var x ledger.Explanation
		require.Eventually(t, func() bool {
			var err error
			x, err = sys.ledger.Explain(t.Context(), pointRecord(7).Key)
			return err == nil && x.State == rules.Sending
		}, 2*time.Minute, 10*time.Millisecond)
		require.Contains(t, open(t, sys, x.AttemptBy), "is calling the Money API since")
		require.NoError(t, worker.api.Stop(t.Context())) // ends the call
	})
	t.Run("embedded/settled", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		sys.end(7, rules.Done)
		text, e := explain(sys)
		require.Len(t, e.Calls, 1)
		require.False(t, e.Calls[0].Open())
		require.False(t, e.MaybeCharged)
		require.NotContains(t, text, "perhaps charged")
		require.NotContains(t, text, mayBe)
	})
	t.Run("embedded/a lookup", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, onlyOnce)
		sys.end(7, rules.Unclear)
		b, err := sys.ledger.Begin(t.Context(), pointRecord(7))
		require.NoError(t, err)
		require.Equal(t, rules.Lookup, b.Next)
		text, e := explain(sys)
		require.Len(t, e.Calls, 2)
		require.Equal(t, payouts.CallLookup, e.Calls[1].Kind)
		require.Contains(t, text, "A lookup began at")
		require.NotContains(t, text, mayBe)
	})
}
