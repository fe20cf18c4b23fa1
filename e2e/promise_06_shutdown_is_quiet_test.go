package e2e

import (
	"testing"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// One of two instances gets SIGTERM under load. No payout in flight is attempted again.
func TestShutdownIsQuiet(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{Latency: 20 * time.Millisecond}).patient()
	n := targets(t, 4_000)
	a, _ := w.start(), w.start()
	w.publish("POINT", n)
	w.awaitPaid("POINT", n/4, 5*time.Minute)
	a.terminate()
	w.start() // as in a deployment
	w.awaitSettled("POINT", n, 10*time.Minute)
	w.assertBalanced("POINT", n)
	w.attemptedOnce("POINT")
}
