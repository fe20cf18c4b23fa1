package broker_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// value returns the value of a series of a process, or of its only one. A histogram has its count.
func (p *process) value(name, label string) float64 {
	p.w.t.Helper()
	for _, s := range redistest.Gather(p.w.t, "millrace_room_"+name, p.registry.Collectors()...) {
		if label == "" || slices.Contains(slices.Collect(maps.Values(s.Labels)), label) {
			return s.Value
		}
	}
	return -1
}

func (p *process) counts(name, label string, want float64) {
	p.w.t.Helper()
	redistest.Eventually(p.w.t, name+" "+label, func() bool { return p.value(name, label) == want })
}

func TestTheMetricsOfABroker(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s)
		p := w.start("broker", "broker")
		d := w.start("dispatcher", "dispatcher")
		w.open(10, 1)
		require.InDelta(t, -1, p.value("tick_age_seconds", w.event), 0, "no user is connected")
		w.guest("u").run().wait("promoted")
		w.guest("u").run().wait("promoted")
		p.counts("joins_total", "new", 1)
		p.counts("joins_total", "attached", 1)
		require.Positive(t, p.value("broadcast_duration_seconds", ""))
		next := w.guest("v").run().wait("position 1")
		require.Equal(t, 204, w.send("DELETE", w.path(), "u").status)
		require.Equal(t, 204, w.send("DELETE", w.path(), "u").status, "no lease ends twice")
		next.wait("promoted")
		// There is no delay of a user whose claim was answered too late.
		redistest.Eventually(t, "delays of users", func() bool {
			n := p.value("promotion_delay_duration_seconds", "")
			require.LessOrEqual(t, n, 2.0)
			return n > 0
		})
		p.counts("ended_total", "ABANDONED", 1)
		require.Equal(t, 204, w.send("DELETE", w.path(), "w").status, "no lease")
		w.guest("x").run().wait("position 1")
		w.loses("x")
		p.counts("joins_total", "restored", 1)
		p.counts("ended_total", "ABANDONED", 1)
		require.Zero(t, p.value("sign_failures_total", ""))
		p.toRedis.SetDown(true)
		redistest.Eventually(t, "signs fail", func() bool { return p.value("sign_failures_total", "") > 0 })
		p.toRedis.SetDown(false)
		redistest.Eventually(t, "a tick is seen", func() bool { return p.value("tick_age_seconds", w.event) < 1 })
		require.NoError(t, d.runtime.Stop(t.Context()))
		redistest.Eventually(t, "no tick is seen", func() bool { return p.value("tick_age_seconds", w.event) > 2 })
	})
}
