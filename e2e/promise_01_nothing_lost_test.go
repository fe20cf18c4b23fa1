package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Every record of two campaigns is paid, with nothing installed but the binary.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	tier.Embedded(t)
	cmd := exec.Command(binary(t), "demo", "--json", "--targets", strconv.Itoa(targets(t, 5_000)))
	cmd.Env = append(os.Environ(), "MILLRACE__INSTANCE_ID=demo")
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	require.NoError(t, cmd.Run(), "%s%s", &out, &errOut)
	var r map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	n := 2 * float64(targets(t, 5_000))
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
}

// Kafka, Redis and PostgreSQL are restarted one after the other while a campaign is paid.
func TestNothingIsLostWhenServersAreRestarted(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	usual := simulator.Faults{Latency: 20 * time.Millisecond, FailRate: 0.02, TimeoutRate: 0.01, Seed: 1}
	slow := usual
	slow.Latency = 400 * time.Millisecond
	w := onServers(t, servers.Redis, usual)
	n := targets(t, 5_000)
	a, b := w.start(), w.start()
	// While one server is restarted, the others may pay all that was published: each restart gets a
	// part of the campaign of its own. Its publication repeats the earlier parts.
	for i, name := range []string{servers.Kafka, servers.Redis, servers.Postgres} {
		before, all := i*n/3, (i+1)*n/3
		require.NoError(t, w.api.SetFaults(slow))
		w.publish("POINT", all)
		w.awaitPaid("POINT", before+n/100, 5*time.Minute)
		require.Less(t, w.counts("POINT").Paid, int64(all), "all are paid: the restart of %s proves nothing", name)
		require.NoError(t, w.fleet.restart(t.Context(), name))
		require.NoError(t, w.api.SetFaults(usual))
		w.awaitSettled("POINT", all, 10*time.Minute)
	}
	w.assertBalanced("POINT", n)
	require.False(t, a.ended() || b.ended(), "an instance has ended")
}

// The topic of a campaign is deleted and made again while the campaign is paid. All records of the new one are accepted,
// though the group has committed offsets in the old one that the new one has, too: the instances only look at it when it
// has twice as many records.
func TestNothingIsLostWhenATopicIsMadeAgain(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Promotion, tier.Kafka)
	w := onServers(t, servers.Redis, simulator.Faults{Latency: 100 * time.Millisecond, Seed: 1})
	n := targets(t, 1_000)
	all := []*instance{w.start(), w.start()}
	signal := func(s os.Signal) {
		for _, in := range all {
			require.NoError(t, in.cmd.Process.Signal(s))
		}
	}
	w.publish("POINT", n)
	require.Eventually(t, func() bool { return w.counts("POINT").Accepted == int64(n) }, 5*time.Minute, 50*time.Millisecond, "all are accepted")
	signal(syscall.SIGSTOP)
	require.Less(t, w.counts("POINT").Paid, int64(n), "all are paid: the topic is not made again while the campaign runs")
	w.makeAgain("campaign-promotion-point-publish")
	first := w.promotion
	w.promotion++
	w.publish("POINT", 2*n)
	signal(syscall.SIGCONT)
	w.awaitSettled("POINT", 2*n, 10*time.Minute)
	w.assertBalanced("POINT", 2*n)
	w.promotion = first
	w.awaitSettled("POINT", n, 10*time.Minute)
	w.assertBalanced("POINT", n)
	require.False(t, all[0].ended() || all[1].ended(), "an instance has ended")
}

// The embedded environment is killed and started again: the ledger and Kafka are files, and Redis
// is filled again from the ledger.
func TestNothingIsLostWhenTheEmbeddedEnvironmentIsKilled(t *testing.T) {
	t.Parallel()
	tier.Embedded(t)
	dir := t.TempDir()
	demo := func() *exec.Cmd {
		return exec.Command(binary(t), "demo", "--json", "--targets", "1500", "--data", dir, "--latency", "20ms")
	}
	first := demo()
	ended, err := startBound(first)
	require.NoError(t, err)
	pause(t, 3*time.Second)
	require.NoError(t, first.Process.Signal(syscall.SIGKILL))
	<-ended
	out, err := demo().Output()
	require.NoError(t, err, "%s", out)
	var r struct {
		Paid, Charged int64
		Balanced      bool
	}
	require.NoError(t, json.Unmarshal(out, &r))
	require.True(t, r.Balanced)
	require.EqualValues(t, 3_000, r.Paid)
}
