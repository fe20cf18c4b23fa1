package promotion_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// ownRecord is a record of nobody's campaign.
const ownRecord = `{"promotionId":4711,"promotionSummaryId":9,"targetId":7,"amount":1}`

// probeOf is a command that sends ownRecord, if more says so.
func probeOf(more ...string) []string {
	return append([]string{"campaign", "probe", "point", "--record", ownRecord, "--who", "me", "--why", "a new API"}, more...)
}

type probeResult struct {
	To, Request string
	Answers     []struct{ Call, Class, Receipt string }
	Checks      []operate.Check
}

func TestAProbeOfTheMoneyAPI(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		to := sys.api.URL() + "/v1/points/charges"
		charges := func() []simulator.Entry {
			page, err := sys.api.Page(simulator.Query{})
			require.NoError(t, err)
			return page.Entries
		}
		for code, args := range map[int][]string{app.ExitOK: probeOf("--dry-run"), app.ExitUsage: probeOf()} {
			text := sys.says(code, args...)
			for _, part := range []string{"The request of POINT:4711:7 would be sent twice, with the same key", "looked up then", to, ownRecord} {
				require.Contains(t, text, part)
			}
			require.Equal(t, code == app.ExitUsage, strings.Contains(text, "nothing was sent: --yes sends it"), text)
			require.Empty(t, charges())
		}

		var r probeResult
		sys.json(&r, probeOf("--yes")...)
		require.Equal(t, []string{to, ownRecord}, []string{r.To, r.Request})
		require.Len(t, r.Answers, 3)
		require.Len(t, charges(), 1, "the simulator honours the key")
		for i, call := range []string{"send 1", "send 2", "lookup"} {
			require.Equal(t, []string{call, "paid", charges()[0].Receipt}, []string{r.Answers[i].Call, r.Answers[i].Class, r.Answers[i].Receipt})
			require.Equal(t, operate.OK, r.Checks[i].Level, r.Checks[i])
		}
		changes, err := sys.ledger.RecentAudit(t.Context(), operate.AuditFilter{}, 10)
		require.NoError(t, err)
		require.Len(t, changes.Changes, 1)
		c := changes.Changes[0]
		require.Equal(t, []string{"probe", "POINT:4711:7", "me", "a new API"}, []string{c.Action, c.Subject, c.Who, c.Why})

		for _, more := range []string{"--yes", "--dry-run"} {
			require.Contains(t, sys.says(app.ExitBad, probeOf(more)...), "POINT:4711:7 was probed before: give a record of your own")
		}
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(7)}, ledger.AcceptOptions{})[0].Err)
		args := probeOf("--yes")
		args[4] = `{"promotionId":1,"promotionSummaryId":9,"targetId":8,"amount":1}`
		require.Contains(t, sys.says(app.ExitBad, args...), "the ledger knows the promotion POINT:1, and a charge without a payout would be missing in its books")
		require.Len(t, charges(), 1)
		args[4] = `{"promotionId":1}`
		require.Contains(t, sys.says(app.ExitUsage, args...), "targetId: must be > 0")
		args[2] = "COIN"
		require.Contains(t, sys.says(app.ExitUsage, args...), "TYPE must be one of POINT, VOUCHER")
	})
}

// Each far side that lies is found out, and each line says what to do.
func TestAProbeOfAMoneyAPIThatLies(t *testing.T) {
	type far struct {
		charge func(n int) (status int, body string) // the answer to the n-th charge
		lookup string                                // the answer to the lookup; empty: no charge
	}
	paid := func(tx string) string { return `{"idempotencyKey":"POINT:4711:7","transactionKey":"` + tx + `"}` }
	then := func(first, second int, a, b string) func(int) (int, string) {
		return func(n int) (int, string) {
			if n == 1 {
				return first, a
			}
			return second, b
		}
	}
	for name, c := range map[string]struct {
		far
		levels []operate.Level
		says   string
	}{
		"another charge":        {far{then(201, 201, paid("tx-1"), paid("tx-2")), paid("tx-1")}, []operate.Level{operate.OK, operate.Fail, operate.OK}, "has another receipt, tx-2: the far side did it twice"},
		"the answer replayed":   {far{then(201, 200, paid("tx-1"), paid("tx-1")), paid("tx-1")}, []operate.Level{operate.OK, operate.OK, operate.OK}, "the far side knows the key"},
		"a conflict":            {far{then(201, 409, paid("tx-1"), `{"code":"exists"}`), paid("tx-1")}, []operate.Level{operate.OK, operate.Fail, operate.OK}, "was answered as ambiguous"},
		"a refusal":             {far{then(201, 422, paid("tx-1"), `{"code":"exists"}`), paid("tx-1")}, []operate.Level{operate.OK, operate.Fail, operate.OK}, "would end as failed"},
		"nothing is found":      {far{then(201, 200, paid("tx-1"), paid("tx-1")), ""}, []operate.Level{operate.OK, operate.OK, operate.Fail}, "finds nothing, though the request was done"},
		"another is found":      {far{then(201, 200, paid("tx-1"), paid("tx-1")), paid("tx-9")}, []operate.Level{operate.OK, operate.OK, operate.Fail}, "finds the receipt tx-9"},
		"no answer of its own":  {far{then(502, 200, "bad gateway", paid("tx-1")), ""}, []operate.Level{operate.Fail}, "perhaps done"},
		"the credential is bad": {far{then(401, 200, `{"code":"unauthorized"}`, paid("tx-1")), ""}, []operate.Level{operate.Fail}, "own_fault"},
	} {
		t.Run("embedded/"+name, func(t *testing.T) {
			charges := 0
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				status, body := http.StatusOK, c.lookup
				switch {
				case r.Method == http.MethodPost:
					charges++
					status, body = c.charge(charges)
				case body == "":
					status, body = http.StatusNotFound, `{"code":"charge_not_found"}`
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				fmt.Fprint(w, body)
			}))
			t.Cleanup(api.Close)
			sys := newSystem(t, simulator.Faults{}, func(cfg *promotion.Config) { cfg.MoneyAPI.URL = api.URL })
			code := app.ExitOK
			for _, l := range c.levels {
				if l == operate.Fail {
					code = app.ExitBad
				}
			}
			text := sys.says(code, probeOf("--yes")...)
			require.Contains(t, text, c.says)
			if code == app.ExitBad && len(c.levels) > 1 {
				require.Contains(t, text, "send nothing else there until it does what openapi.yaml of the Money API says")
			}
			sends := 2
			if len(c.levels) == 1 {
				sends = 1
			}
			require.Equal(t, sends, charges)
		})
	}
}
