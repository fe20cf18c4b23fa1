package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// An idle campaign stops and leaves no key in Redis. The next record starts it again.
func TestAnIdleCampaignStopsAndTheNextRecordStartsItAgain(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{}).patient()
	w.set("plugins.promotion.stream.idle_timeout", "3s")
	w.start()
	w.start()
	w.publish("VOUCHER", 100)
	w.awaitSettled("VOUCHER", 100, time.Minute)
	require.Eventually(t, func() bool { return len(w.keys("VOUCHER")) == 0 }, 2*time.Minute, 100*time.Millisecond, "stream, group and meta are gone")
	require.False(t, w.counts("VOUCHER").Active)
	w.publish("VOUCHER", 101, "--no-started") // 100 duplicates and one that is new
	w.awaitSettled("VOUCHER", 101, time.Minute)
	w.assertBalanced("VOUCHER", 101)
	w.attemptedOnce("VOUCHER")
}

// An idle stream costs one XREADGROUP per poll interval and instance, and no blocking command.
func TestIdleCostsAlmostNothing(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{})
	const interval = 250 * time.Millisecond
	w.set("plugins.promotion.stream.poll_interval", interval.String()).set("plugins.promotion.stream.idle_timeout", "10m")
	w.start()
	w.start()
	w.publish("POINT", 50)
	w.awaitSettled("POINT", 50, time.Minute)
	reads := func() int64 { return w.redisInfo("commandstats", "cmdstat_xreadgroup:calls=") }
	first := reads()
	require.Eventually(t, func() bool { return reads() >= first+40 }, 2*time.Minute, 10*time.Millisecond,
		"the sleep between two reads grows to poll_interval")
	begin, before := time.Now(), reads()
	pause(t, 3*time.Second)
	calls := reads() - before
	most := 2 * (int64(time.Since(begin)/interval) + 1)
	require.LessOrEqual(t, calls, most, "XREADGROUP by two instances in %s", time.Since(begin))
	require.Positive(t, calls)
	require.Zero(t, w.redisInfo("clients", "blocked_clients:"))
}
