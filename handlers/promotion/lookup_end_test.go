package promotion

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// No payout but one is called, and each of its lookups is refused. It ends UNKNOWN, with the reason in
// its last error and in its dead letter, so the rows of its calls are bounded.
func TestTheLookupsOfALonePayoutEnd(t *testing.T) {
	for name, env := range map[string]func(testing.TB) *modelEnv{"embedded": embeddedModelEnv, "postgres": realModelEnv} {
		t.Run(name, func(t *testing.T) {
			h := env(t)
			hist := h.newHistory()
			in := hist.ins[0]
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					w.WriteHeader(http.StatusInternalServerError)
					_, _ = w.Write([]byte(`{"code":"internal","message":"broken"}`))
					return
				}
				w.WriteHeader(http.StatusGone)
				_, _ = w.Write([]byte("<html>gone</html>"))
			}))
			t.Cleanup(api.Close)
			in.callAt(t, api.URL)

			rec := hist.record(t, 7)
			require.NoError(t, in.ledger.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
			var x ledger.Explanation
			var err error
			for range 100 {
				_ = in.proc.Pay(t.Context(), rec) // an error leads to a retry record
				x, err = in.ledger.Explain(t.Context(), rec.Key)
				require.NoError(t, err)
				if x.State.Settled() {
					break
				}
				hist.pass(45 * time.Minute)
			}
			require.Equal(t, rules.Unknown, x.State)
			require.Contains(t, x.LastError, "its lookups are refused")
			require.Contains(t, x.LastError, "410")
			require.Less(t, len(x.Calls), 100)
			require.Len(t, x.DeadLetters, 1)
			require.Equal(t, rules.ClassUnknown, x.DeadLetters[0].Class)
			require.Equal(t, x.LastError, x.DeadLetters[0].Error)
		})
	}
}
