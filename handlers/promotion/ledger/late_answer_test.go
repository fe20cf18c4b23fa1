package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A worker wakes after its payout became UNKNOWN, and its answer is paid. An operator can't deny
// that by mistake. A forced denial causes no second payment.
func TestALateAnswerIsEvidence(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, once)
		unknown := func(target int64) (payouts.Record, BeginResult) {
			r := record(1, target)
			mustAccept(t, l, r)
			b := mustBegin(t, l, r)
			h.advance(time.Minute) // its worker is frozen, and its lease ends
			require.Equal(t, rules.Lookup, mustBegin(t, l, r).Next)
			h.advance(time.Minute) // and so is the one that looks it up
			mustBegin(t, l, r)
			require.Equal(t, rules.Unknown, mustExplain(t, l, r.Key).State)
			return r, b
		}
		wakes := func(r payouts.Record, epoch int64) {
			require.True(t, mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: epoch, Outcome: rules.Done, Receipt: "TX-1"}}).Stale)
		}
		no := rules.Resolution{Who: "kim", Why: "they know nothing of it"}
		r, b := unknown(1)
		wakes(r, b.Epoch)
		x := mustExplain(t, l, r.Key)
		require.True(t, slices.ContainsFunc(x.Calls, func(a payouts.Attempt) bool { return a.Late && a.Answer == "transaction key TX-1" }), "it is not lost")
		err := l.Resolve(t.Context(), r.Key, no)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, "a late answer states a charge: transaction key TX-1")
		require.Equal(t, rules.Unknown, mustExplain(t, l, r.Key).State)
		insists := no
		insists.Force = true
		require.NoError(t, l.Resolve(t.Context(), r.Key, insists))

		other, b := unknown(2)
		require.NoError(t, l.Resolve(t.Context(), other.Key, no))
		wakes(other, b.Epoch) // after it was denied

		h.advance(25 * time.Hour) // the key is too old to be sent again
		for i, r := range []payouts.Record{r, other} {
			require.Equal(t, rules.Failed, mustExplain(t, l, r.Key).State)
			got, err := l.Replay(t.Context(), r.Key, replayOf(fmt.Sprint("l", i), 1))
			require.NoError(t, err)
			require.Equal(t, ReplayResult{Outcome: ReplayDone, State: rules.Ambiguous}, got)
			require.Equal(t, rules.Lookup, mustBegin(t, l, r).Next, "looked up, never sent")
		}

		resolved, b := unknown(3)
		wakes(resolved, b.Epoch)
		require.NoError(t, l.Resolve(t.Context(), resolved.Key, rules.Resolution{Done: true, Receipt: "TX-1", Who: "kim", Why: "late answer"}))
	})
}
