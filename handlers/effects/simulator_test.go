package effects_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
	"github.com/millrace-io/millrace/plugins/once/simulator"
)

// simulated runs the command `once simulator` until the end of the test and returns the URL of its API.
func simulated(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := simulator.OnceCommand()
	cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0", "--json"}, args...))
	cmd.SetOut(w)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	in := bufio.NewReader(r)
	line, err := in.ReadBytes('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, in) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, w.Close())
	})
	var listening struct{ URL string }
	require.NoError(t, json.Unmarshal(line, &listening))
	return listening.URL
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body)
}

// A kind of settings meets the limit and the faults of a simulated API, and its effects are those of the API's book.
func TestAKindOfSettingsAtASimulatedAPI(t *testing.T) {
	t.Parallel()
	const faults = "--fail-rate 0.2 --reset-rate 0.2 --per-second 20 --sum-field cents"
	withSum := strings.NewReplacer(
		"        request:", "        sum: invoice.cents\n        request:",
		"receipt: invoice.id, code: error.code, message: error.text", "receipt: id",
		"key_ttl: 23h", "key_ttl: 23h, max_retries: 60, max_released: 1000, retry: {first: 20ms, max: 200ms}",
		"API/billing", "API").Replace(invoices)
	byLookup := strings.NewReplacer(
		"repeat: by_key", "repeat: by_lookup\n        lookup: {path: \"/found/{key}\", not_found: [not_found]}",
		"key_ttl: 23h", "under_way: 2s, call_timeout: 1s").Replace(withSum)
	for name, c := range map[string]struct{ flags, settings string }{
		"with keys":     {"--post /v1/invoices --key-header Request-Id", withSum},
		"with a lookup": {"--forget-keys --key-header Request-Id --lookup /found/{key}", byLookup},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, url := sqldbtest.File(t), simulated(t, strings.Fields(c.flags+" "+faults)...)
			w := newWorld(t, dsn)
			w.start(t, c.settings, dsn, &far{Server: &httptest.Server{URL: url}})
			payloads := make([]string, 25)
			for n := range payloads {
				payloads[n] = fmt.Sprintf(`{"invoice":{"customer":"acme","number":%d,"cents":%d}}`, n+1, 100+n)
			}
			w.send(t, "invoices", payloads...)
			for _, payload := range payloads {
				// The clock is not turned, because the limit of the API is one of real time.
				var s once.State
				require.Eventually(t, func() bool { s = w.state(t, "invoice", payload); return s.State.Settled() }, patience, 5*time.Millisecond)
				require.Equal(t, rules.Success, s.State, "%s: %s", payload, s.Error)
			}
			r := w.reconciled(t, get(t, url+"/_sim/journal?format=book"))
			require.True(t, r.Balanced, "%+v", r)
			require.EqualValues(t, len(payloads), r.Buckets[reconcile.Matched])
			var sum simulator.Summary
			require.NoError(t, json.Unmarshal([]byte(get(t, url+"/_sim/summary")), &sum))
			require.Zero(t, sum.Doubled)
			require.Zero(t, sum.Overlaps)
			for _, kind := range []string{"failed", "reset"} {
				require.NotZero(t, sum.Requests[kind], "%s: %v", kind, sum.Requests)
			}
			t.Log(sum.String())
		})
	}
}
