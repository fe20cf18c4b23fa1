package streams

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A node that does not answer, and that has the wake-up stream, delays no enqueue to another node.
func TestASilentNodeWithTheWakeUpStreamDelaysNoEnqueue(t *testing.T) {
	answers := redistest.Mini(t)
	silent := redistest.NewProxy(t, answers.Addr)
	c := goredis.NewClusterClient(&goredis.ClusterOptions{
		Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true,
		ClusterSlots: func(context.Context) ([]goredis.ClusterSlot, error) {
			return []goredis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []goredis.ClusterNode{{Addr: answers.Addr}}},
				{Start: 8192, End: 16383, Nodes: []goredis.ClusterNode{{Addr: silent.Addr()}}},
			}, nil
		},
	})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	isSilent := func(key string) bool {
		node, err := c.MasterForKey(t.Context(), key)
		require.NoError(t, err)
		return strings.HasSuffix(silent.Addr(), node.Options().Addr)
	}
	k := Kind{Type: "POINT", StreamPrefix: "POINT:", GroupPrefix: "group:"}
	for !isSilent(k.WakeKey()) {
		k.StreamPrefix += "x:"
	}
	m := NewManager(Options{
		Kind: k, Config: still, Client: func() goredis.UniversalClient { return c }, Activations: newActiveSet(), Instance: "a",
	})
	require.NoError(t, m.Ensure(t.Context(), "1"))
	silent.Mute()
	silent.Cut()
	const enqueues = 20
	done, slow := 0, 0
	for id := int64(1); done < enqueues; id++ {
		if isSilent(k.Stream(fmt.Sprint(id))) {
			continue
		}
		begin := time.Now()
		enqueue(t, m, fmt.Sprint(id), 0, 1)
		if time.Since(begin) >= wakeTimeout {
			slow++
		}
		done++
	}
	require.Less(t, slow, enqueues/2, "each waited for the wake-up")
	failures := func() float64 { return testutil.ToFloat64(m.opts.Metrics.failures.WithLabelValues("POINT", "wake")) }
	redistest.Eventually(t, "the failure is counted", func() bool { return failures() == 1 })
}

// An entry was added before the caller's time was over. Its stream is not slow.
func TestAStreamThatAnswersInTimeIsNotSlow(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet("1"), still())
		enqueue(t, in.Manager, "1", 0, 1)
		ctx, cancel := context.WithCancel(t.Context())
		h := &hook{}
		in.client.AddHook(h)
		h.set(nil, func(cmd goredis.Cmder) {
			if cmd.Name() == "evalsha" {
				cancel()
			}
		})
		out, err := in.Enqueue(ctx, "1", newEntry("x"))
		require.NoError(t, err)
		require.Equal(t, Added, out)
		require.Error(t, ctx.Err())
		require.False(t, in.Full("1"))
		_, err = in.Enqueue(ctx, "1", newEntry("y"))
		require.Error(t, err)
	})
}

// A client without redirections can use a cluster of one node. Its enqueues wake other instances.
func TestAPlainClientUsesAClusterOfOneNode(t *testing.T) {
	ownServers(t, func(t *testing.T, s server) {
		require.NoError(t, s.client.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
		redistest.Eventually(t, "the cluster is ready", func() bool {
			return s.client.Set(t.Context(), s.prefix+":probe", "x", 0).Err() == nil
		})
		in := idleInstance(t, s, "1")
		other := newInstance(t, s, "other", newActiveSet("1"), still())
		enqueue(t, other.Manager, "1", 0, 3)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 3 })
	}, "--cluster-enabled", "yes")
}
