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
