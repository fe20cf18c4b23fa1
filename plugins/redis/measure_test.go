package redis

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A node of a Cluster that hangs has no series, and the others are measured.
func TestANodeThatHangsIsNotMeasured(t *testing.T) {
	t.Parallel()
	answers, silent := redistest.Mini(t), redistest.Mini(t)
	proxy := redistest.NewProxy(t, silent.Addr)
	c := halves(t, answers.Addr, proxy.Addr(), time.Minute)
	d := DomainConfig{Prefix: "measured", Shards: 20, Group: "g"}
	cfg := &Config{Domains: []DomainConfig{d}}
	trim := newTrimmer(cfg)
	measured := func() int {
		trim.measure(t.Context(), c, redistest.Logger(t))
		return testutil.CollectAndCount(trim.metrics.entries)
	}
	require.Equal(t, d.Shards, measured())
	server, here := serverOf(c), 0
	for n := range d.Shards {
		node := server.Node(t.Context(), d.Stream(n))
		require.True(t, onNode(t, c, d.Stream(n), node))
		if onNode(t, c, d.Stream(n), answers.Addr) {
			here++
		}
	}
	require.InDelta(t, d.Shards/2, here, 8)
	require.Empty(t, serverOf(answers.Client(t)).Node(t.Context(), "key"), "no Cluster")

	proxy.Mute()
	proxy.Cut()
	trim.limit = 500 * time.Millisecond
	redistest.Eventually(t, "measured", func() bool { return measured() == here })
	proxy.SetDown(true)
}
