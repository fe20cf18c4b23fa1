package e2e

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// startCluster starts three primaries with a third of the slots each, and a replica of the last
// one. args are more options for all.
func startCluster(t *testing.T, program string, args ...string) (primaries []*node, replica *node) {
	t.Helper()
	member := func() *node {
		bus, err := freePort() // the usual one, ten thousand higher, may be no port at all
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(bus)
		require.NoError(t, err)
		return startNode(t, program, append([]string{"--cluster-enabled", "yes", "--cluster-port", port,
			"--cluster-node-timeout", "15000"}, args...)...) // longer than a node may get no CPU
	}
	const slots = 16384
	for i := range 3 {
		n := member()
		n.must("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		n.must("CLUSTER", "ADDSLOTSRANGE", i*slots/3, (i+1)*slots/3-1)
		primaries = append(primaries, n)
	}
	replica = member()
	everyone := append(slices.Clone(primaries), replica)
	for _, n := range everyone[1:] {
		bus := n.args[slices.Index(n.args, "--cluster-port")+1]
		primaries[0].must("CLUSTER", "MEET", "127.0.0.1", n.port(), bus)
	}
	for _, n := range everyone {
		n.shows(n.ClusterInfo, "cluster_known_nodes:4")
	}
	replica.must("CLUSTER", "REPLICATE", primaries[2].id())
	replica.shows(replica.section("replication"), "master_link_status:up")
	for _, n := range everyone {
		n.shows(n.ClusterInfo, "cluster_state:ok")
	}
	return primaries, replica
}

// moveSlot moves the slot of a key from one primary to another, as resharding does. It waits in the
// middle, when each of the two nodes has some of the keys.
func moveSlot(t *testing.T, from, to *node, key string, middle time.Duration) {
	t.Helper()
	slot := from.must("CLUSTER", "KEYSLOT", key)
	to.must("CLUSTER", "SETSLOT", slot, "IMPORTING", from.id())
	from.must("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id())
	for first := true; ; first = false {
		keys, err := from.ClusterGetKeysInSlot(t.Context(), int(slot.(int64)), 10).Result()
		require.NoError(t, err)
		if len(keys) == 0 && !first {
			break
		}
		// The meta key first.
		slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
		for _, k := range keys {
			from.must("MIGRATE", "127.0.0.1", to.port(), k, 0, 5000)
			if first {
				pause(t, middle)
				break
			}
		}
	}
	for _, n := range []*node{to, from} {
		n.must("CLUSTER", "SETSLOT", slot, "NODE", to.id())
	}
}

// unhurried makes a campaign last for some seconds, on any machine: what happens to its servers is
// to happen in the middle.
func unhurried(t *testing.T, redisName string) *deployment {
	t.Helper()
	w := onServers(t, redisName, simulator.Faults{Latency: 20 * time.Millisecond, FailRate: 0.02, TimeoutRate: 0.01, Seed: 1})
	return w.set("plugins.promotion.stream.min_consumers_per_instance", 4).set("plugins.promotion.stream.max_consumers_per_instance", 4)
}

// A campaign on a cluster. The stream's slot moves to another node under load. Then that node is
// killed, and its replica takes over without the latest writes.
func TestARedisCluster(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Redis)
	for redisName, program := range map[string]string{servers.Redis: "redis-server", servers.Valkey: "valkey-server"} {
		t.Run(redisName, func(t *testing.T) {
			w := unhurried(t, redisName)
			primaries, replica := startCluster(t, program)
			addrs := make([]string, len(primaries))
			for i, p := range primaries {
				addrs[i] = p.addr
				p.restrict()
			}
			replica.restrict()
			w.set("plugins.redis.username", "millrace").set("plugins.redis.password", theirPassword)
			w.set("plugins.redis.addrs", addrs).set("plugins.redis.cluster", true).set("plugins.promotion.stream.idle_timeout", "5s")
			a, b := w.start(), w.start()
			n := targets(t, 3_000)
			w.publish("POINT", n)
			w.publish("VOUCHER", n) // its stream is on another node
			w.awaitPaid("POINT", n/8, 2*time.Minute)

			stream := w.stream("POINT")
			owner := slices.IndexFunc(primaries, func(p *node) bool { return p.Exists(t.Context(), stream).Val() == 1 })
			require.GreaterOrEqual(t, owner, 0, "no node has the stream")
			last := primaries[2]
			if owner == 2 { // it goes away first, so that it comes
				moveSlot(t, last, primaries[0], stream, 0)
				owner = 0
			}
			moveSlot(t, primaries[owner], last, stream, 500*time.Millisecond)
			w.awaitPaid("POINT", n/4, 2*time.Minute)
			require.EqualValues(t, 1, last.Exists(t.Context(), stream).Val(), "the campaign is over before its node is killed")
			w.mustCommand(nil, "campaign", "status", "POINT", strconv.FormatInt(w.promotion, 10))
			w.levels("debug", "--for", "10m")
			w.levels("settings")
			last.kill()
			replica.shows(replica.section("replication"), "role:master")

			w.awaitSettled("POINT", n, 5*time.Minute)
			w.awaitSettled("VOUCHER", n, 5*time.Minute)
			w.assertBalanced("POINT", n)
			w.assertBalanced("VOUCHER", n)
			require.False(t, a.ended() || b.ended(), "an instance gave up")
			for _, p := range []*node{primaries[0], primaries[1], replica} {
				p.empties()
				p.refusedNothing()
			}
		})
	}
}

// levels changes the log level of both instances, and waits until each says so.
func (w *deployment) levels(level string, more ...string) {
	w.t.Helper()
	w.mustCommand(nil, append([]string{"instances", "log-level", level, "--why", "a test"}, more...)...)
	require.Eventually(w.t, func() bool {
		var said struct {
			Instances []struct {
				Log *struct{ Level, Setting string }
			}
		}
		w.mustCommand(&said, "instances")
		require.Len(w.t, said.Instances, 2)
		for _, i := range said.Instances {
			if i.Log == nil || i.Log.Level != level && (level != "settings" || i.Log.Level != i.Log.Setting) {
				return false
			}
		}
		return true
	}, 2*time.Minute, glance, "an instance has not the log level %s", level)
}

// A campaign on a primary that sentinels watch: it is killed, and the replica takes over.
func TestRedisBehindSentinels(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Redis)
	w := unhurried(t, servers.Redis)
	primary := startNode(t, "redis-server")
	replica := startNode(t, "redis-server", "--replicaof", "127.0.0.1 "+primary.port())
	replica.shows(replica.section("replication"), "master_link_status:up")
	sentinel := startSentinel(t, "payouts", primary)

	w.set("plugins.redis.addrs", []string{sentinel.addr}).set("plugins.redis.master_name", "payouts")
	a, b := w.start(), w.start()
	n := targets(t, 3_000)
	w.publish("POINT", n)
	w.awaitPaid("POINT", n/4, 2*time.Minute)
	primary.kill()
	replica.shows(replica.section("replication"), "role:master")
	w.awaitPaid("POINT", n/2, 2*time.Minute)
	primary.run() // and comes back, as a replica
	primary.shows(primary.section("replication"), "role:slave")

	w.awaitSettled("POINT", n, 5*time.Minute)
	w.assertBalanced("POINT", n)
	require.False(t, a.ended() || b.ended(), "an instance gave up")
}
