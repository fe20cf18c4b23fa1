package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Instance A ends with entries that it has read and not started. Instance B pays them. A's consumer
// is removed; B's consumer and the stream stay.
func TestNothingIsStranded(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, servers.Redis, simulator.Faults{Latency: 100 * time.Millisecond}).patient()
	w.set("plugins.promotion.stream.idle_timeout", "120s")
	w.set("plugins.reclaim.presence_timeout", "6s").set("plugins.reclaim.dead_check_interval", "1s")
	const n = 1_000
	a, b := w.start(), w.start()
	w.publish("POINT", n)
	w.awaitPaid("POINT", n/10, time.Minute)
	a.terminate()
	require.Eventually(t, func() bool { return !w.readers("POINT")[a.name+"-0"] }, 2*time.Minute, 50*time.Millisecond, "A's consumer is removed")
	require.True(t, w.readers("POINT")[b.name+"-0"], "B's consumer stays")
	w.awaitSettled("POINT", n, 2*time.Minute)
	w.assertBalanced("POINT", n)
	w.attemptedOnce("POINT")
	require.NotEmpty(t, w.keys("POINT"), "the stream stays until it is idle")
}

// readers returns the names of the consumers in the promotion's group.
func (w *deployment) readers(kind string) map[string]bool {
	w.t.Helper()
	consumers, err := w.redis.XInfoConsumers(w.t.Context(), w.stream(kind), "campaign-promotion-group:"+kind+":"+strconv.FormatInt(w.promotion, 10)).Result()
	require.NoError(w.t, err)
	names := map[string]bool{}
	for _, c := range consumers {
		names[c.Name] = true
	}
	return names
}
