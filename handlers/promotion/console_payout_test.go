package promotion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A call whose outcome nobody stored reads on the page as in `campaign explain`: it may have charged.
func TestTheCallsOnThePageAreThoseOfExplain(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	e := campaign.Explained{Calls: []payouts.Attempt{
		{Kind: payouts.CallSend, Number: 1, StartedAt: began, EndedAt: began.Add(time.Second), Outcome: payouts.Interrupted, Class: rules.ClassLeaseExpired},
		{Kind: payouts.CallSend, Number: 2, StartedAt: began, Instance: "worker-1"},
	}}
	shown := callsOf(e.History())
	require.Len(t, shown.Rows, 2)
	require.Equal(t, []string{"not stored", "its lease ended without an answer; it may have been charged"}, []string{shown.Rows[0][4].Text, shown.Rows[0][7].Text})
	require.Equal(t, operate.Warn, shown.Rows[0][4].Level)
	require.Equal(t, "not stored", shown.Rows[1][4].Text)
	require.Equal(t, "A call began at 2026-11-28T09:00:00.000Z, by instance worker-1, and its outcome is not stored: it may have been charged.", e.OpenCall())
}
