package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// One of two instances gets SIGTERM under load, and later the other one the order to drain. No payout in flight is attempted
// again.
func TestShutdownIsQuiet(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{Latency: 20 * time.Millisecond}).patient()
	n := targets(t, 4_000)
	a, b := w.start(), w.start()
	w.publish("POINT", n)
	w.awaitPaid("POINT", n/4, 5*time.Minute)
	a.terminate()
	c := w.start() // as in a deployment
	w.awaitPaid("POINT", n/2, 5*time.Minute)
	var ordered struct{ Others []string }
	w.mustCommand(&ordered, "instances", "drain", b.name, "--who", "ann", "--why", "a test")
	require.Equal(t, []string{c.name}, ordered.Others)
	b.endsWell("the order to drain")
	require.True(t, b.log.has(`"draining","reason":"ordered by ann, because: a test"`), "%s", b.log)
	w.awaitSettled("POINT", n, 10*time.Minute)
	w.assertBalanced("POINT", n)
	w.attemptedOnce("POINT")
}
