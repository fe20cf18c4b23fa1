package broker_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A node of a Cluster that does not answer delays no user of an event on another node.
func TestASilentNodeDelaysNoUserOfAnother(t *testing.T) {
	t.Parallel()
	tier.Embedded(t)
	first, second, proxy := redistest.MiniCluster(t)
	w := newWorld(t, first, first.Addr, proxy.Addr())
	p := w.start("broker", "broker")
	d := w.start("dispatcher", "dispatcher")
	on := func(s redistest.Server) {
		for i := 0; !s.Mini.Exists(w.key1("ROOM")); i++ {
			w.event = fmt.Sprint("concert-", i)
			w.open(10, 1)
		}
	}
	on(second)
	there := w.guest("u").run().wait("promoted")
	on(first)
	buyer := w.guest("v").run().wait("promoted")
	waits := w.guest("w").run().wait("position 1")

	proxy.Mute()
	proxy.Cut()
	p.killed, d.killed = true, true // their names may be on the silent node
	before := p.quickBroadcasts()
	redistest.Eventually(t, "rounds that do not wait for the other node", func() bool { return p.quickBroadcasts() >= before+5 })
	_, err := w.rooms.Finish(t.Context(), w.event, "v", buyer.ticket(0).JTI, "", true)
	require.NoError(t, err)
	waits.wait("promoted")
	require.False(t, there.ended())
	p.passes("waitingroom.broker", "waitingroom.broker.loops")
	p.killed, d.killed = true, true // they can not end their presence on that node
	proxy.SetDown(true)
}

// passes checks that readiness checks pass.
func (p *process) passes(names ...string) {
	p.w.t.Helper()
	passed := 0
	for _, c := range p.registry.HealthChecks() {
		if slices.Contains(names, c.Name) {
			passed++
			require.NoError(p.w.t, c.Check(p.w.t.Context()), c.Name)
		}
	}
	require.Len(p.w.t, names, passed)
}

// quickBroadcasts returns the number of broadcasts that took less than a second.
func (p *process) quickBroadcasts() uint64 {
	p.w.t.Helper()
	list := redistest.Gather(p.w.t, "millrace_room_broadcast_duration_seconds", p.registry.Collectors()...)
	require.Len(p.w.t, list, 1)
	require.Contains(p.w.t, list[0].Below, 1.0)
	return list[0].Below[1]
}
