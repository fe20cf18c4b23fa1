package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// The campaign is twenty times as large as its stream may be, and shares its partitions with a
// paused promotion. Memory stays bounded, and the pause delays no other promotion.
func TestOverloadIsAnswered(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{})
	w.set("plugins.promotion.stream.max_len", 500)
	n, paused := targets(t, 10_000), targets(t, 10_000)/10
	in := w.start()
	w.mustCommand(nil, "campaign", "pause", "POINT", "777", "--future", "--why", "a test")
	w.mustCommand(nil, "campaign", "publish", "--promotion", "777", "--type", "POINT", "--targets", strconv.Itoa(paused))
	w.publish("POINT", n)
	w.awaitSettled("POINT", n, 15*time.Minute)
	w.assertBalanced("POINT", n)
	require.LessOrEqual(t, in.peakMemory(), int64(300<<20), "memory of the process")
	require.LessOrEqual(t, w.redisPeak(), int64(50<<20), "memory of Redis")

	w.promotion = 777
	require.Zero(t, w.counts("POINT").Paid, "paid while it is paused")
	require.EqualValues(t, paused, w.counts("POINT").Accepted, "the pause delayed records")
	w.mustCommand(nil, "campaign", "resume", "POINT", "777", "--why", "a test")
	w.awaitSettled("POINT", paused, 5*time.Minute)
	w.assertBalanced("POINT", paused)
}
