package campaign

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// Without --force --unpaid needs an answer of the Money API that has no charge and could not have
// missed one.
func TestUnpaidNeedsProof(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		said    lookup
		allowed bool
	}{
		"no charge":                     {lookup{Answer: "no_charge"}, true},
		"no charge, the key is too old": {lookup{Answer: "no_charge", KeyTooOld: true}, false},
		"no charge, sent just now":      {lookup{Answer: "no_charge", JustSent: true}, false},
		"charged":                       {lookup{Answer: "paid", TransactionKey: "tx"}, false},
		"under way":                     {lookup{Answer: "ambiguous", Status: http.StatusConflict}, false},
		"500":                           {lookup{Answer: "ambiguous", Status: http.StatusInternalServerError}, false},
		"401":                           {lookup{Answer: "own_fault", Status: http.StatusUnauthorized}, false},
		"away":                          {lookup{Answer: "not_sent", Text: "connection refused"}, false},
		"not queried":                   {lookup{Answer: "not_asked", Text: "the simulator is elsewhere"}, false},
		"throttled":                     {lookup{Answer: "throttled"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tt.said.contradicts(resolution{unpaid: true})
			require.Equal(t, tt.allowed, err == nil, "%v", err)
		})
	}
	require.NoError(t, (&lookup{Answer: "not_asked"}).contradicts(resolution{paid: "tx"}), "a person has seen the charge elsewhere")
}

func TestTheLastSendIsNoLookup(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	x := ledger.Explanation{Calls: []payouts.Attempt{{Kind: payouts.CallSend, StartedAt: at.Add(time.Second)}, {Kind: payouts.CallSend, StartedAt: at},
		{Kind: payouts.CallLookup, StartedAt: at.Add(time.Hour)}, {Kind: payouts.CallSend, Late: true, EndedAt: at.Add(time.Hour)}}}
	require.Equal(t, at.Add(time.Second), lastSend(x))
	require.True(t, lastSend(ledger.Explanation{}).IsZero())
}
