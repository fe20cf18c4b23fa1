package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
)

// node is one server of Redis or Valkey that a scenario starts for itself, beside the fleet's.
type node struct {
	t       *testing.T
	program string
	addr    string
	args    []string
	cmd     *exec.Cmd
	*redis.Client
}

// startNode starts a server on a free port; args are more options for it.
func startNode(t *testing.T, program string, args ...string) *node {
	t.Helper()
	n := newNode(t, program)
	n.args = append([]string{"--port", n.port(), "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--appendonly", "no"}, args...)
	n.run()
	return n
}

// startSentinel starts the one sentinel that watches a primary, under a name, and waits until it has found its replica.
func startSentinel(t *testing.T, name string, primary *node) *node {
	t.Helper()
	n := newNode(t, primary.program)
	file := filepath.Join(t.TempDir(), "sentinel.conf") // which it writes to
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "port %s\nbind 127.0.0.1\nsentinel monitor %s 127.0.0.1 %s 1\n"+
		"sentinel down-after-milliseconds %[2]s 1000\nsentinel failover-timeout %[2]s 5000\n", n.port(), name, primary.port()), 0o600))
	n.args = []string{file, "--sentinel"}
	n.run()
	n.shows(n.section("sentinel"), "status=ok")
	n.shows(n.section("sentinel"), "slaves=1")
	return n
}

// newNode is a server that is not started yet. Its client connects as options say.
func newNode(t *testing.T, program string, options ...func(*redis.Options)) *node {
	t.Helper()
	addr, err := freePort()
	require.NoError(t, err)
	o := &redis.Options{Addr: addr}
	for _, option := range options {
		option(o)
	}
	n := &node{t: t, program: program, addr: addr, Client: redis.NewClient(o)}
	t.Cleanup(func() {
		_ = n.Close()
		n.kill()
	})
	return n
}

func (n *node) run() {
	n.t.Helper()
	n.cmd = exec.Command(n.program, n.args...)
	require.NoError(n.t, n.cmd.Start())
	n.await("it answers", func() error { return n.Ping(n.t.Context()).Err() })
}

func (n *node) kill() {
	if n.cmd != nil && n.cmd.Process != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
	}
}

// await waits until check has nothing to complain of.
func (n *node) await(what string, check func() error) {
	n.t.Helper()
	require.NoError(n.t, until(n.t.Context(), 30*time.Second, n.program+" at "+n.addr+": "+what, check))
}

// shows waits until what the server tells of itself has the text.
func (n *node) shows(tell func(context.Context) *redis.StringCmd, text string) {
	n.t.Helper()
	n.await("it shows "+text, func() error {
		told, err := tell(n.t.Context()).Result()
		if err == nil && !strings.Contains(told, text) {
			err = errors.New(told)
		}
		return err
	})
}

// section is a section of INFO.
func (n *node) section(name string) func(context.Context) *redis.StringCmd {
	return func(ctx context.Context) *redis.StringCmd { return n.Info(ctx, name) }
}

// empties waits until idle streams are cleaned up, and nothing of the promotions is left.
func (n *node) empties() {
	n.t.Helper()
	n.await("idle streams are cleaned up", func() error {
		left, err := n.Keys(n.t.Context(), "*campaign-promotion-*").Result()
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there are %v", left)
		}
		return err
	})
}

func (n *node) port() string {
	_, port, _ := net.SplitHostPort(n.addr)
	return port
}

func (n *node) must(args ...any) any {
	n.t.Helper()
	v, err := n.Do(n.t.Context(), args...).Result()
	require.NoError(n.t, err, "%v", args)
	return v
}

// id is the name that the other nodes of its cluster know it by.
func (n *node) id() string { n.t.Helper(); return n.must("CLUSTER", "MYID").(string) }

// startCluster starts three primaries with a third of the slots each, and a replica of the last one.
func startCluster(t *testing.T, program string) (primaries []*node, replica *node) {
	t.Helper()
	member := func() *node {
		bus, err := freePort() // the usual one, ten thousand higher, may be no port at all
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(bus)
		require.NoError(t, err)
		return startNode(t, program, "--cluster-enabled", "yes", "--cluster-port", port, "--cluster-node-timeout", "1500")
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

// moveSlot moves the slot of a key from one primary to another, as resharding does, and waits in the middle of it, when
// the two nodes have some of its keys each.
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
		slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(len(b), len(a)) }) // the stream's companion before the stream
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

// unhurried makes a campaign last for some seconds, on any machine: what happens to its servers is to happen in the middle.
func unhurried(t *testing.T, redisName string) *world {
	t.Helper()
	w := onServers(t, redisName, moneysim.Faults{Latency: 20 * time.Millisecond, FailRate: 0.02, TimeoutRate: 0.01, Seed: 1})
	return w.set("plugins.promotion.stream.min_consumers_per_instance", 4).set("plugins.promotion.stream.max_consumers_per_instance", 4)
}

// A campaign on a cluster: the stream's slot moves to another node under load, then that node is killed and its replica
// takes over without what it had not yet seen.
func TestARedisCluster(t *testing.T) {
	for _, home := range []struct{ name, redis, program string }{
		{"real", servers.Redis, "redis-server"}, {"valkey/kafka/postgres", servers.Valkey, "valkey-server"},
	} {
		t.Run(home.name, func(t *testing.T) {
			w := unhurried(t, home.redis)
			primaries, replica := startCluster(t, home.program)
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
			last.kill()
			replica.shows(replica.section("replication"), "role:master")

			w.awaitSettled("POINT", n, 5*time.Minute)
			w.awaitSettled("VOUCHER", n, 5*time.Minute)
			w.assertBooks("POINT", n)
			w.assertBooks("VOUCHER", n)
			require.False(t, a.ended() || b.ended(), "an instance gave up")
			for _, p := range []*node{primaries[0], primaries[1], replica} {
				p.empties()
				p.refusedNothing()
			}
		})
	}
}

// A campaign on a primary that sentinels watch: it is killed, and the replica takes over.
func TestRedisBehindSentinels(t *testing.T) {
	t.Run("real", func(t *testing.T) {
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
		w.assertBooks("POINT", n)
		require.False(t, a.ended() || b.ended(), "an instance gave up")
	})
}
