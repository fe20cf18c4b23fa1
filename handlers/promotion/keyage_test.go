package promotion

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// TestAKeyThatAgesFromItsFirstUse pays at an API that counts the age of a key from its first
// request. That request is refused. A day later the payout is charged, and the answer is lost. Then
// the API removes the key. A client that counts the age from the second call would charge twice.
func TestAKeyThatAgesFromItsFirstUse(t *testing.T) {
	t.Parallel()
	h := embeddedModelEnv(t)
	hist := h.newHistory()
	in := hist.ins[0]
	start := time.Now()
	api, err := simulator.New(simulator.Config{KeyTTL: modelKeyLife, KeysAgeFromFirstUse: true, Now: func() time.Time { return start.Add(hist.now) }})
	require.NoError(t, err)
	require.NoError(t, api.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, api.Stop(t.Context())) })
	in.callAt(t, api.URL())

	rec := hist.record(t, 1)
	require.NoError(t, in.ledger.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
	state := func() rules.State {
		x, err := in.ledger.Explain(t.Context(), rec.Key)
		require.NoError(t, err)
		return x.State
	}
	pay := func(f simulator.Faults, after time.Duration) {
		hist.pass(after)
		require.NoError(t, api.SetFaults(f))
		_ = in.proc.Pay(t.Context(), rec) // an error leads to a retry record
	}
	pay(simulator.Faults{ThrottleRate: 1}, 0)
	require.Equal(t, rules.Errored, state())
	pay(simulator.Faults{ResetRate: 1}, 23*time.Hour)
	require.Equal(t, rules.Ambiguous, state())
	require.Equal(t, 1, api.Summary().Executions)
	pay(simulator.Faults{}, modelKeyLife-23*time.Hour+time.Minute)
	for n := 0; !state().Settled(); n++ {
		require.Less(t, n, 10)
		pay(simulator.Faults{}, time.Hour)
	}
	require.Empty(t, strings.Join(hist.faults, "\n"))
	require.Equal(t, 1, api.Summary().Executions, "charged once")
	require.Equal(t, rules.Unknown, state(), "the API does not know the key any more: a person must find out")
}
