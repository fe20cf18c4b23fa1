package oncehttp_test

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// A far side without idempotency keys executes each request. The transport would send one with the header
// Idempotency-Key again when a reused connection is dead, so only ByKey may allow it.
func TestOnlyARequestWithAKeyIsReplayed(t *testing.T) {
	t.Parallel()
	for name, repeat := range map[string]once.Repeat{"lookup": once.ByLookup, "never": once.Never, "always": once.Always, "unset": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onAReusedConnection(t, func() bool {
				var executed atomic.Int32
				s := newRawServer(t, keepAlive(func(c *net.TCPConn, _ string) {
					executed.Add(1)
					c.SetLinger(0)
				}))
				client := newClient(t, s.url(), nil)
				a := attempt("invoice:acme:2")
				a.Repeat = repeat
				require.Equal(t, once.Done, oncehttp.Post(t.Context(), client, "/v1/invoices", a).Class)
				second := oncehttp.Post(t.Context(), client, "/v1/invoices", a)
				if executed.Load() == 0 {
					return false
				}
				require.Equal(t, once.Unclear, second.Class, second.Text)
				require.EqualValues(t, 1, s.accepted.Load(), "there is no second connection")
				require.Zero(t, metric(t, client, "millrace_once_http_replays_total"))
				return true
			})
		})
	}
}
