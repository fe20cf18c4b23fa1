package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Pause, resume and cancel are seen by every instance within 2 s.
func TestAPersonSteers(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{Latency: 20 * time.Millisecond}).patient()
	w.start()
	w.start()
	w.publish("POINT", 8_000)
	w.awaitPaid("POINT", 300, time.Minute)
	w.mustCommand(nil, "campaign", "pause", "POINT", strconv.FormatInt(w.promotion, 10), "--why", "a test")
	pause(t, 2*time.Second)
	seen := w.counts("POINT")
	var before int64
	require.Eventually(t, func() bool { // a process that stands still settles its calls later
		c := w.counts("POINT")
		before = c.Paid
		return c.InFlight == 0 && c.Paid > 0
	}, time.Minute, 50*time.Millisecond, "no call is in flight")
	require.LessOrEqual(t, before, seen.Paid+seen.InFlight, "calls have begun after the pause")
	pause(t, 2*time.Second)
	require.Equal(t, before, w.counts("POINT").Paid, "paid after the pause")

	var status struct {
		Promotions []struct {
			Paid      int64
			Instances []struct{ Instance, Stream, Group string }
		}
	}
	w.mustCommand(&status, "campaign", "status", "POINT", strconv.FormatInt(w.promotion, 10))
	require.Len(t, status.Promotions, 1)
	only := status.Promotions[0]
	require.Equal(t, before, only.Paid)
	require.Len(t, only.Instances, 2)
	require.Equal(t, w.stream("POINT"), only.Instances[0].Stream)

	w.mustCommand(nil, "campaign", "resume", "POINT", strconv.FormatInt(w.promotion, 10), "--why", "a test")
	w.awaitPaid("POINT", int(before)+300, time.Minute)

	var cancelled struct {
		Cancelled int64
		InFlight  int64 `json:"in_flight"`
	}
	w.mustCommand(&cancelled, "campaign", "cancel", "POINT", strconv.FormatInt(w.promotion, 10), "--why", "a test")
	require.Positive(t, cancelled.Cancelled)
	w.awaitSettled("POINT", 8_000, time.Minute)
	c := w.counts("POINT")
	require.EqualValues(t, 8_000, c.Paid+c.Cancelled)
	require.EqualValues(t, c.Paid, w.api.Summary().Executed)
	require.Equal(t, rules.GroupCancelled, c.State)
	out, code := w.command("campaign", "resume", "POINT", strconv.FormatInt(w.promotion, 10), "--why", "a test")
	require.Equal(t, 1, code, "%s", out)
	w.mustCommand(nil, "campaign", "reconcile", "POINT", strconv.FormatInt(w.promotion, 10))
}
