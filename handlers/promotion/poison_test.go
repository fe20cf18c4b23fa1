package promotion

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// poisons are the ways in which the Money API may always answer about one payout: to sends and to
// lookups.
func poisons() map[string]struct {
	send, lookup http.HandlerFunc
	ends         rules.State
} {
	says := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	code := func(status int, code string) http.HandlerFunc {
		return says(status, `{"code":"`+code+`","message":"no"}`)
	}
	none, broken := code(404, "charge_not_found"), code(500, "internal")
	return map[string]struct {
		send, lookup http.HandlerFunc
		ends         rules.State
	}{
		"404 about the payout":        {code(404, "member_not_found"), none, rules.Failed},
		"403 about the payout":        {code(403, "member_blocked"), none, rules.Failed},
		"404 with another code":       {code(404, "no_such_operation"), none, rules.Failed},
		"403 with another code":       {code(403, "forbidden"), none, rules.Failed},
		"403 of a proxy":              {says(403, "<html>"), none, rules.Unknown},
		"429":                         {code(429, "throttled"), none, rules.Failed},
		"429 of a proxy":              {says(429, "slow down"), none, rules.Unknown},
		"a lookup is gone":            {broken, code(410, "gone"), rules.Unknown},
		"a lookup is gone at a proxy": {broken, says(410, "gone"), rules.Unknown},
	}
}

// One payout of a hundred is always answered badly. The breaker and the gate do not change, and
// each other payout is paid with one call. The poisoned ones end after a bounded number of calls.
func TestPoisonedPayoutsStopNoOthers(t *testing.T) {
	t.Parallel()
	const total, step, every = 600, 20, 100
	for name, poison := range poisons() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := embeddedModelEnv(t)
			hist := h.newHistory()
			in := hist.ins[0]
			poisoned := func(target int64) bool { return target%every == every/2 }
			api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				key := r.Header.Get("Idempotency-Key")
				if r.Method == http.MethodGet {
					key = r.URL.Path
				}
				var target int64
				_, _ = fmt.Sscan(key[strings.LastIndexByte(key, ':')+1:], &target)
				switch {
				case !poisoned(target):
					_, _ = fmt.Fprintf(rw, `{"transactionKey":"tx-%d"}`, target)
				case r.Method == http.MethodGet:
					poison.lookup(rw, r)
				default:
					poison.send(rw, r)
				}
			}))
			t.Cleanup(api.Close)
			client := in.callAt(t, api.URL)

			open := []payouts.Record{}
			for first := int64(1); first <= total; first += step {
				for target := first; target < first+step; target++ {
					open = append(open, hist.record(t, target))
				}
				var g errgroup.Group
				for _, rec := range open { // new ones, and those that have not ended
					g.Go(func() error {
						if err := in.ledger.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err; err != nil {
							return err
						}
						_ = in.proc.Pay(t.Context(), rec) // an error leads to a retry record
						return nil
					})
				}
				require.NoError(t, g.Wait())
				hist.pass(45 * time.Minute)
				require.True(t, client.Ready())
				require.Zero(t, clientGauge(t, client, "breaker_state"), "closed")
				unsettled := open[:0]
				for _, rec := range open {
					x, err := in.ledger.Explain(t.Context(), rec.Key)
					require.NoError(t, err)
					switch {
					case !poisoned(rec.Target):
						require.Equal(t, rules.Success, x.State)
						require.Len(t, x.Calls, 1)
					case !x.State.Settled():
						unsettled = append(unsettled, rec)
					default:
						require.Equal(t, poison.ends, x.State)
						require.LessOrEqual(t, len(x.Calls), 12, "3 sends and 3 lookups may be begun, and 2 of either released and counted, and the first of each is free")
					}
				}
				open = unsettled
			}
			require.LessOrEqual(t, len(open), 1, "only the last one may not have had time to end")
			require.Empty(t, strings.Join(hist.faults, "\n"))
		})
	}
}
