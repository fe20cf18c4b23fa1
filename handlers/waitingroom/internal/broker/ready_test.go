package broker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A moment without Redis fails no check. An outage fails only the one that does not count for a
// load balancer.
func TestReadinessOfABroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &Broker{opts: Options{Config: DefaultConfig()}}
		b.mark(&b.lastRead, &b.lastBroadcast, &b.lastSigns)
		pass := func(fields ...*time.Time) {
			for range 5 {
				time.Sleep(3 * time.Second)
				b.mark(fields...)
			}
		}
		check := func(f func(context.Context) error, want string) {
			t.Helper()
			if want == "" {
				require.NoError(t, f(t.Context()))
			} else {
				require.ErrorContains(t, f(t.Context()), want)
			}
		}
		pass(&b.lastBroadcast, &b.lastSigns)
		check(b.reads, "")
		pass(&b.lastBroadcast, &b.lastSigns)
		check(b.reads, "no rank table was read for 30s")
		check(b.loopsRun, "")
		pass(&b.lastRead, &b.lastBroadcast)
		check(b.reads, "")
		check(b.loopsRun, "")
		pass(&b.lastRead, &b.lastBroadcast)
		check(b.loopsRun, "have had no round for 30s")
		b.mark(&b.lastSigns)
		check(b.loopsRun, "")
	})
}
