package promotion

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
)

// Nothing is declared unpaid without --force, unless the Money API was asked, knows no charge, and must know it by now.
func TestWhatLetsUnpaidBeBooked(t *testing.T) {
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
		"not asked":                     {lookup{Answer: "not_asked", Text: "the simulator is elsewhere"}, false},
		"throttled":                     {lookup{Answer: "throttled"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tt.said.contradicts(resolveFlags{unpaid: true})
			require.Equal(t, tt.allowed, err == nil, "%v", err)
		})
	}
	require.NoError(t, (&lookup{Answer: "not_asked"}).contradicts(resolveFlags{paid: "tx"}), "a person has seen the charge elsewhere")
}

func TestTheLastSendIsNoAsk(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	x := ledger.Explanation{Calls: []ledger.Attempt{{Kind: ledger.CallSend, StartedAt: at.Add(time.Second)}, {Kind: ledger.CallSend, StartedAt: at},
		{Kind: ledger.CallAsk, StartedAt: at.Add(time.Hour)}, {Kind: ledger.CallSend, Late: true, EndedAt: at.Add(time.Hour)}}}
	require.Equal(t, at.Add(time.Second), lastSend(x))
	require.True(t, lastSend(ledger.Explanation{}).IsZero())
}
