package promotion

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

func TestPayoutKeys(t *testing.T) {
	t.Parallel()
	for _, k := range []ledger.Key{{Type: "POINT", Promotion: 1, Target: 2}, {Type: "VOUCHER", Promotion: 1 << 60, Target: 777}} {
		got, err := payoutKey(k.String())
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
	for _, text := range []string{"", "POINT", "POINT:1", "POINT:1:2:3", "POINT:x:2", "POINT:1:0x2", "POINT:01:2", "POINT:1: 2"} {
		_, err := payoutKey(text)
		require.Error(t, err, text)
	}
}

// What the ledger says about a payout is what becomes of the replay of its letter.
func TestAReplayIsTheLedgersToDecide(t *testing.T) {
	t.Parallel()
	p := newEngine(&Config{Ledger: ledger.DefaultConfig()}, newMetrics())
	p.config.Ledger.DSN = pipeline.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "ledger.db"))
	l, err := ledger.Open(t.Context(), p.config.Ledger, ledger.Options{Instance: "test", Lease: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	require.NoError(t, l.Migrate(t.Context()))
	p.ledger = l
	fail := func(target int64) ledger.Key {
		rec := ledger.Record{Key: ledger.Key{Type: "POINT", Promotion: 5, Target: target}, SummaryID: 1, Payload: []byte("{}"), Handler: "h"}
		_, err := l.Accept(t.Context(), rec, false)
		require.NoError(t, err)
		begun, err := l.Begin(t.Context(), rec)
		require.NoError(t, err)
		_, err = l.Settle(t.Context(), ledger.Result{Key: rec.Key, Epoch: begun.Epoch, Outcome: ledger.Rejected, Class: "rejected", Answer: "422", Handler: "h"})
		require.NoError(t, err)
		return rec.Key
	}
	replay := func(subject, class string) deadletter.Outcome {
		out, err := deadReplays{p}.Replay(t.Context(), letters.Letter{ID: "letter of " + subject, Subject: subject, Class: class, Generation: 1}, letters.By{Who: "ann", Why: "x"})
		require.NoError(t, err)
		return out
	}
	one, two := fail(1), fail(2)
	require.Contains(t, replay(one.String(), ledger.ClassConflict).Reason, "the first one wins")
	require.Equal(t, deadletter.Outcome{Result: letters.OutcomeReplayed}, replay(one.String(), "rejected"))
	require.Equal(t, letters.OutcomeAlready, replay(one.String(), "rejected").Result)
	status, err := l.Status(t.Context(), one.Of())
	require.NoError(t, err)
	require.EqualValues(t, 1, status.Pending)
	require.EqualValues(t, 1, status.Failed)
	require.Contains(t, replay("POINT:5:3", "rejected").Reason, "has no payout POINT:5:3")
	require.Contains(t, replay("what", "rejected").Reason, "is no payout")
	_, err = l.Cancel(t.Context(), one.Of())
	require.NoError(t, err)
	require.Equal(t, deadletter.Refuse("POINT:5:2: its promotion is cancelled"), replay(two.String(), "rejected"))
}
