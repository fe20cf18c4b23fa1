package promotion_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A worker continued after its payout had become UNKNOWN, and its call was answered "paid". The
// Money API is unavailable now, but the ledger has the evidence.
func TestALateAnswerIsNotDenied(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{Unauthorized: true}, onlyOnce)
		r := pointRecord(1)
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{r}, ledger.AcceptOptions{})[0].Err)
		woken, err := sys.ledger.Begin(t.Context(), r)
		require.NoError(t, err)
		settle := func(o rules.Outcome, key string) ledger.SettleResult {
			s, err := sys.ledger.Settle(t.Context(), payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: woken.Epoch, Outcome: o, Receipt: key, Class: "timeout"}})
			require.NoError(t, err)
			return s
		}
		require.Equal(t, rules.Ambiguous, settle(rules.Unclear, "").State)
		require.Equal(t, rules.Unknown, sys.call(r, rules.Rejected).State)
		require.NoError(t, sys.ledger.Resolve(t.Context(), r.Key, rules.Resolution{Who: "kim", Why: "no trace of it"}))
		again, err := sys.ledger.Replay(t.Context(), r.Key, ledger.Replay{DeadLetter: "a", Generation: 1, Who: "kim", Why: "pay it"})
		require.NoError(t, err)
		require.Equal(t, ledger.ReplayDone, again.Outcome)
		b, err := sys.ledger.Begin(t.Context(), r)
		require.NoError(t, err)
		require.True(t, settle(rules.Done, "TX-7").Stale)
		_, err = sys.ledger.Settle(t.Context(), payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Unclear, Class: "timeout"}})
		require.NoError(t, err)
		sys.call(r, rules.Rejected)
		require.Equal(t, rules.Unknown, func() rules.State {
			x, err := sys.ledger.Explain(t.Context(), r.Key)
			require.NoError(t, err)
			return x.State
		}())

		_, said, code := sys.command("unknown", "resolve", "POINT", "1", "1", "--unpaid", "--why", "no trace of it", "--who", "kim")
		require.Equal(t, app.ExitBad, code)
		require.Contains(t, said, "a late answer says it was charged, transaction key TX-7")
		var e campaign.Explained
		sys.json(&e, "campaign", "explain", "POINT", "1", "1")
		require.Contains(t, e.Next, "unknown resolve POINT 1 1 --paid TX-7")
		sys.says(app.ExitOK, "unknown", "resolve", "POINT", "1", "1", "--unpaid", "--force", "--why", "they have taken it back", "--who", "kim")
		require.Eventually(t, func() bool { return sys.counts("POINT").Failed == 1 }, 2*time.Minute, 10*time.Millisecond)
	})
}
