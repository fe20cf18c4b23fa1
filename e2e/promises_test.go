package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
)

// usual are the faults of a Money API on a usual day.
var usual = moneysim.Faults{Latency: 5 * time.Millisecond, FailRate: 0.02, TimeoutRate: 0.01, Seed: 1}

// targets is the size of a scenario's campaign: n, or what MILLRACE_E2E_TARGETS says, for the full runs.
func targets(t *testing.T, n int) int {
	t.Helper()
	if v := os.Getenv("MILLRACE_E2E_TARGETS"); v != "" {
		all, err := strconv.Atoi(v)
		require.NoError(t, err, "MILLRACE_E2E_TARGETS")
		return all
	}
	return n
}

// Promise 1 and 2, with nothing installed but the binary.
func TestTheMainJob(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		cmd := exec.Command(binary(t), "demo", "--json", "--targets", strconv.Itoa(targets(t, 10_000)))
		cmd.Env = append(os.Environ(), "MILLRACE__INSTANCE_ID=demo")
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		require.NoError(t, cmd.Run(), "%s%s", &out, &errOut)
		var r map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		n := 2 * float64(targets(t, 10_000))
		for _, field := range []string{"published", "accepted", "paid", "charged"} {
			require.Equal(t, n, r[field], field)
		}
		for _, field := range []string{"failed", "unknown", "cancelled", "dead", "conflict", "pending", "double_charged", "missing"} {
			require.Equal(t, 0.0, r[field], field)
		}
		for _, field := range []string{"seconds", "payouts_per_second", "cpu_us_per_payout"} {
			require.Positive(t, r[field], field)
		}
		require.Less(t, r["peak_memory_bytes"], float64(300<<20), "peak memory")
	})
}

// Promise 1 and 2: three instances share a campaign, one is killed in the middle and another started.
func TestNothingLostNothingPaidTwice(t *testing.T) {
	for _, home := range []struct{ name, redis string }{{"real", "redis"}, {"valkey/kafka/postgres", "valkey"}} {
		t.Run(home.name, func(t *testing.T) {
			w := onServers(t, home.redis, usual)
			n := targets(t, 6_000)
			instances := []*instance{w.start(), w.start(), w.start()}
			w.publish("POINT", n)
			w.awaitPaid("POINT", n/4, 5*time.Minute)
			instances[1].kill()
			w.start()
			w.awaitSettled("POINT", n, 10*time.Minute)
			w.assertBooks("POINT", n)
		})
	}
}

// Promise 9: Redis is wiped in mid-campaign.
func TestRedisCanBeWiped(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", usual)
		n := targets(t, 6_000)
		w.start()
		w.start()
		w.publish("VOUCHER", n)
		for _, part := range []int{10, 3, 2} {
			w.awaitPaid("VOUCHER", n/part, 5*time.Minute)
			require.NoError(t, w.redis.FlushAll(t.Context()).Err())
		}
		w.awaitSettled("VOUCHER", n, 10*time.Minute)
		w.assertBooks("VOUCHER", n)
	})
}

// Promise 10: a stream that holds little, and a paused promotion beside it on the same partitions.
func TestOverloadIsAnswered(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{})
		w.set("plugins.promotion.stream.max_len", 1_000)
		n, paused := targets(t, 20_000), targets(t, 20_000)/10
		in := w.start()
		w.mustCommand(nil, "campaign", "pause", "POINT", "777", "--future", "--why", "a test")
		w.mustCommand(nil, "campaign", "publish", "--promotion", "777", "--type", "POINT", "--targets", strconv.Itoa(paused))
		w.publish("POINT", n)
		w.awaitSettled("POINT", n, 15*time.Minute)
		w.assertBooks("POINT", n)
		require.LessOrEqual(t, in.peakMemory(), int64(300<<20), "memory of the process")
		require.LessOrEqual(t, w.redisPeak(), int64(50<<20), "memory of Redis")

		w.promotion = 777
		require.Zero(t, w.counts("POINT").Paid, "paid although it is paused")
		require.EqualValues(t, paused, w.counts("POINT").Accepted, "the pause held records up")
		w.mustCommand(nil, "campaign", "resume", "POINT", "777")
		w.awaitSettled("POINT", paused, 5*time.Minute)
		w.assertBooks("POINT", paused)
	})
}

func (w *world) redisPeak() int64 {
	w.t.Helper()
	return w.redisInfo("memory", "used_memory_peak:")
}

// Promise 6: SIGTERM under load on one of two instances; no payout in hand is attempted again.
func TestShutdownIsQuiet(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{Latency: 20 * time.Millisecond}).patient()
		n := targets(t, 6_000)
		a, _ := w.start(), w.start()
		w.publish("POINT", n)
		w.awaitPaid("POINT", n/4, 5*time.Minute)
		a.terminate()
		w.start() // and a third one takes its place, as in a deploy
		w.awaitSettled("POINT", n, 10*time.Minute)
		w.assertBooks("POINT", n)
		w.attemptedOnce("POINT")
	})
}

// Promise 3: what A had read and not begun is paid by B; A's reader is gone, B's and the stream stay (seed 001 §7.5).
func TestWhatIsGivenBackIsPaid(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{Latency: 100 * time.Millisecond}).patient()
		w.set("plugins.promotion.stream.idle_timeout", "120s")
		const n = 1_000
		a, b := w.start(), w.start()
		w.publish("POINT", n)
		w.awaitPaid("POINT", n/10, time.Minute)
		a.terminate()
		// What A gave back is claimed, and its name removed, once A has been gone for reclaim's dead_after.
		require.Eventually(t, func() bool { return !w.readers("POINT")[a.name+"-0"] }, time.Minute, 50*time.Millisecond, "A's reader is gone")
		require.True(t, w.readers("POINT")[b.name+"-0"], "B's reader stays")
		w.awaitSettled("POINT", n, 2*time.Minute)
		w.assertBooks("POINT", n)
		w.attemptedOnce("POINT")
		require.NotEmpty(t, w.keys("POINT"), "the stream stays until it is idle")
	})
}

// readers returns the names of the consumers in the promotion's group.
func (w *world) readers(kind string) map[string]bool {
	w.t.Helper()
	consumers, err := w.redis.XInfoConsumers(w.t.Context(), w.stream(kind), "campaign-promotion-group:"+kind+":"+strconv.FormatInt(w.promotion, 10)).Result()
	require.NoError(w.t, err)
	names := map[string]bool{}
	for _, c := range consumers {
		names[c.Name] = true
	}
	return names
}

// Promise 7: an idle campaign stops, leaves nothing behind, and the next record starts it again (seed 000 §6.2).
func TestIdleStopsAndTheNextRecordStartsAgain(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{}).patient()
		w.set("plugins.promotion.stream.idle_timeout", "3s")
		w.start()
		w.start()
		w.publish("VOUCHER", 100)
		w.awaitSettled("VOUCHER", 100, time.Minute)
		require.Eventually(t, func() bool { return len(w.keys("VOUCHER")) == 0 }, time.Minute, 100*time.Millisecond, "stream, group and meta are gone")
		require.False(t, w.counts("VOUCHER").Active)
		w.publish("VOUCHER", 101, "--no-started") // 100 duplicates and one that is new
		w.awaitSettled("VOUCHER", 101, time.Minute)
		w.assertBooks("VOUCHER", 101)
		w.attemptedOnce("VOUCHER")
	})
}

// Promise 7: an idle stream costs one XREADGROUP a poll interval and instance, and never a blocking command.
func TestIdleCostsAlmostNothing(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{})
		const interval = 250 * time.Millisecond
		w.set("plugins.promotion.stream.poll_interval", interval.String()).set("plugins.promotion.stream.idle_timeout", "10m")
		w.start()
		w.start()
		w.publish("POINT", 50)
		w.awaitSettled("POINT", 50, time.Minute)
		// The back-off has reached poll_interval when ten reads in a row took ten intervals.
		pause(t, 2*time.Second)
		begin, before := time.Now(), w.redisInfo("commandstats", "cmdstat_xreadgroup:calls=")
		pause(t, 5*time.Second)
		calls := w.redisInfo("commandstats", "cmdstat_xreadgroup:calls=") - before
		most := 2 * (int64(time.Since(begin)/interval) + 1)
		require.LessOrEqual(t, calls, most, "XREADGROUP by two instances in %s", time.Since(begin))
		require.Positive(t, calls)
		require.Zero(t, w.redisInfo("clients", "blocked_clients:"))
	})
}
