package redis

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Readiness does not depend on the node that the client chooses.
func TestReadinessOnAClusterWithADeadNode(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*redistest.Proxy){
		"silent": func(p *redistest.Proxy) { p.Mute(); p.Cut() },
		"killed": func(p *redistest.Proxy) { p.SetDown(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, _, proxy := redistest.MiniCluster(t)
			p := New()
			p.cfg.Addrs, p.cfg.Cluster = []string{first.Addr, proxy.Addr()}, true
			require.EqualError(t, p.check(t.Context()), "redis: not started")
			c, err := open(t.Context(), p.cfg.ClientConfig, slog.New(slog.DiscardHandler), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			p.client = c
			require.NoError(t, p.check(t.Context()))

			fail(proxy)
			for range 10 { // a call to the dead node takes longer than the time limit
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				require.NoError(t, p.check(ctx))
				cancel()
			}
			first.Mini.Close()
			require.ErrorContains(t, p.check(context.Background()), "redis at cluster "+first.Addr)
			proxy.SetDown(true)
		})
	}
}
