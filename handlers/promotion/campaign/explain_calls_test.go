package campaign

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// A call that spent no attempt has the number of the next one, which makes that one no replay.
func TestOnlyCallsAfterAReplayAreReplayed(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }
	call := func(second int, o payouts.Outcome) payouts.Attempt {
		return payouts.Attempt{Kind: payouts.CallSend, Number: 1, StartedAt: at(second), EndedAt: at(second), Outcome: o}
	}
	calls := []payouts.Attempt{call(1, payouts.NotSent), call(2, payouts.Rejected), call(4, payouts.Paid)}
	var out bytes.Buffer
	writeCalls(&out, Explained{Calls: calls}.History())
	require.NotContains(t, out.String(), "replayed")
	out.Reset()
	writeCalls(&out, Explained{Calls: calls, Audit: []ledger.Audit{{Action: "resolve", At: at(0)}, {Action: "replay", At: at(3)}}}.History())
	require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("send 1, replayed")), out.String())
}

// A lookup has the attempt of the request before it, and several are told apart.
func TestLookupsAreNumbered(t *testing.T) {
	t.Parallel()
	call := func(k payouts.CallKind, second int) payouts.Attempt {
		at := time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC)
		return payouts.Attempt{Kind: k, Number: 1, StartedAt: at, EndedAt: at}
	}
	var names []string
	for _, c := range (Explained{Calls: []payouts.Attempt{call(payouts.CallSend, 1), call(payouts.CallLookup, 2), call(payouts.CallLookup, 3)}}).History() {
		names = append(names, c.Name)
	}
	require.Equal(t, []string{"send 1", "ask 1", "ask 2"}, names)
}
