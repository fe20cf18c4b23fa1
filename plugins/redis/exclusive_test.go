package redis_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// checker records which instance starts which entry of an exclusive domain.
type checker struct {
	t     *testing.T
	s     redistest.Server
	d     redis.DomainConfig
	admin goredis.UniversalClient

	mu     sync.Mutex
	starts []started
	seen   map[string]bool
	next   int
}

type started struct {
	at              time.Time
	instance, shard string
	n               int
	first, owned    bool
}

// sharing is one instance that reads the domain.
type sharing struct {
	name  string
	p     *redis.Plugin
	sub   pipeline.Subscription
	proxy *redistest.Proxy
	hang  chan struct{} // not nil: handlers wait for it
}

func exclusiveDomain(t *testing.T, s redistest.Server, shards int) *checker {
	t.Helper()
	d, admin := domain(t, s, shards)
	d.Exclusive = true
	t.Cleanup(func() {
		for n := range shards {
			require.NoError(t, admin.Del(context.Background(), redis.MetaKey(d.Stream(n))).Err())
		}
	})
	return &checker{t: t, s: s, d: d, admin: admin, seen: map[string]bool{}}
}

// join starts an instance. Its handlers wait for hang, which may be nil.
func (c *checker) join(hang chan struct{}) *sharing {
	c.t.Helper()
	i := &sharing{name: "test-" + watermill.NewULID(), proxy: redistest.NewProxy(c.t, c.s.Addr), hang: hang}
	p, _, err := start(c.t, i.proxy.Addr(), i.name, redistest.Logger(c.t))
	require.NoError(c.t, err)
	cfg := settings(p)
	cfg.Domains, cfg.PollInterval, cfg.InitialPollInterval = []redis.DomainConfig{c.d}, 10*time.Millisecond, time.Millisecond
	i.p = p
	i.sub, err = p.Domain(c.d.Prefix).Source().Open(c.t.Context(), pipeline.Flow{Window: 20, LongestHold: 10 * time.Second})
	require.NoError(c.t, err)
	out, err := i.sub.Subscribe(context.Background(), "")
	require.NoError(c.t, err)
	var handling sync.WaitGroup
	handling.Go(func() {
		for m := range out {
			c.start(i, m)
			handling.Go(func() {
				if i.hang != nil {
					<-i.hang
				}
				m.Ack()
			})
		}
	})
	c.t.Cleanup(func() {
		require.NoError(c.t, i.sub.Close())
		handling.Wait()
	})
	return i
}

func (c *checker) start(i *sharing, m *message.Message) {
	o := pipeline.DeliveryFrom(m.Context())
	n, _ := strconv.Atoi(string(m.Payload))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.starts = append(c.starts, started{time.Now(), i.name, o.Source, n, o.Delivered == 1, redis.Owned(m.Context())})
	c.seen[string(m.Payload)] = true
}

// started returns the starts until now. A test that fails must not hold the mutex, because handlers
// need it until the subscriptions are closed.
func (c *checker) started() []started {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.starts)
}

// distinct returns how many entries were started.
func (c *checker) distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

// add adds one entry to each shard.
func (c *checker) add() {
	for shard := range c.d.Shards {
		add(c.t, c.admin, c.d.Stream(shard), strconv.Itoa(c.next))
		c.next++
	}
}

// handled waits until all entries were started.
func (c *checker) handled() {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return c.distinct() == c.next }, 3*patience, tick)
}

// shares waits until the instances have these numbers of shards, in any order.
func (c *checker) shares(want string, instances ...*sharing) {
	c.t.Helper()
	got := ""
	require.Eventually(c.t, func() bool {
		owned := make([]int, 0, len(instances))
		streams := map[string]bool{}
		total := 0
		for _, i := range instances {
			reading := i.p.Domain(c.d.Prefix).Reading()
			owned = append(owned, len(reading))
			total += len(reading)
			for _, r := range reading {
				streams[r.Stream] = true
			}
		}
		got = strings.Trim(fmt.Sprint(owned), "[]")
		counts := map[int]int{}
		for _, n := range owned {
			counts[n]++
		}
		wanted := map[int]int{}
		for _, field := range strings.Fields(want) {
			n, _ := strconv.Atoi(field)
			wanted[n]++
		}
		return total == c.d.Shards && len(streams) == total && fmt.Sprint(counts) == fmt.Sprint(wanted)
	}, 3*patience, 20*time.Millisecond, "the shares stay %s", got)
}

// check requires that first deliveries keep the order of their shard. The owner of a shard changes
// only with a new epoch.
func (c *checker) check() {
	c.t.Helper()
	last := map[string]int{}
	owner := map[string]string{}
	changes := map[string]int{}
	for _, s := range c.started() {
		if owner[s.shard] != s.instance {
			owner[s.shard] = s.instance
			changes[s.shard]++
		}
		if s.first {
			if at, ok := last[s.shard]; ok {
				require.Greater(c.t, s.n, at, "%s", s.shard)
			}
			last[s.shard] = s.n
		}
	}
	for shard, n := range changes {
		epoch, err := c.admin.HGet(c.t.Context(), redis.MetaKey(shard), "epoch").Int()
		require.NoError(c.t, err)
		require.LessOrEqual(c.t, n, epoch, "%s was read by several instances at once", shard)
	}
}

// Instances join and leave. Each shard is read by one of them, and they have even shares.
func TestExclusiveShardsAreSharedEvenly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := exclusiveDomain(t, s, 4)
		a := c.join(nil)
		c.shares("4", a)
		stop, adding := make(chan struct{}), sync.WaitGroup{}
		adding.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					c.add()
				case <-stop:
					return
				}
			}
		})
		b := c.join(nil)
		c.shares("2 2", a, b)
		third := c.join(nil)
		c.shares("2 1 1", a, b, third)
		require.NoError(t, a.sub.Drain(t.Context()))
		require.Empty(t, a.p.Domain(c.d.Prefix).Reading())
		c.shares("2 2", b, third)
		close(stop)
		adding.Wait()
		c.handled()
		c.check()
		owners := func() map[string]bool {
			all := map[string]bool{}
			for n := range c.d.Shards {
				if owner := c.admin.HGet(t.Context(), redis.MetaKey(c.d.Stream(n)), "owner").Val(); owner != "" {
					all[owner] = true
				}
			}
			return all
		}
		require.Len(t, owners(), 2)
		require.NoError(t, b.sub.Drain(t.Context()))
		require.LessOrEqual(t, len(owners()), 1, "a graceful stop releases its leases at once")
		c.add()
		c.handled()
		c.check()
	})
}

// An owner that is cut off starts nothing after its lease. The next owner starts with the pending
// entries of the former one, in order, within 10 s.
func TestAnOwnerWithoutALeaseStartsNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := exclusiveDomain(t, s, 2)
		stood := redistest.StoodStill(t, 500*time.Millisecond)
		runs := func() bool { return stood() < 2*time.Second } // else a lease of b may have ended, and it begins again
		hang := make(chan struct{})
		a, letGo := c.join(hang), sync.OnceFunc(func() { close(hang) })
		t.Cleanup(letGo) // a failed test leaves no handler behind
		c.shares("2", a)
		for range 60 { // more than the window: some wait in the reader
			c.add()
		}
		require.Eventually(t, func() bool { return len(c.started()) == 40 }, patience, tick)
		a.proxy.SetDown(true)
		cut := time.Now()
		b := c.join(nil)
		c.handled()
		require.Less(t, time.Since(cut), 10*time.Second+stood())
		starts := c.started()
		before := len(starts)
		byB := map[string][]int{}
		for _, s := range starts {
			if s.instance == b.name {
				byB[s.shard] = append(byB[s.shard], s.n)
				require.True(t, s.first || !s.owned, "no effect is repeated")
				require.True(t, s.owned || !s.first || !runs(), "no effect is lost")
			}
		}
		for shard, all := range byB {
			if runs() {
				require.IsIncreasing(t, all, shard)
			}
			slices.Sort(all)
			require.Len(t, slices.Compact(all), 60, "all pending entries, then the new ones")
		}
		letGo()
		require.Empty(t, a.p.Domain(c.d.Prefix).Reading())
		a.proxy.SetDown(false)
		c.shares("1 1", a, b)
		if runs() {
			require.Len(t, c.started(), before, "started after the end of the lease, or twice")
		}
		c.add()
		c.handled()
		for n := range c.d.Shards {
			require.Eventually(t, func() bool {
				pending, err := c.admin.XPending(t.Context(), c.d.Stream(n), group).Result()
				return err == nil && pending.Count == 0
			}, patience, tick)
		}
		c.check()
	})
}

// An owner is cut off. The next one handles all that it had read, and leaves. The former owner then
// starts nothing of that again, also when the companion key was deleted meanwhile.
func TestAFormerOwnerStartsAnew(t *testing.T) {
	t.Parallel()
	for _, deleted := range []bool{false, true} {
		t.Run(fmt.Sprint("deleted ", deleted), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s redistest.Server) {
				c := exclusiveDomain(t, s, 2)
				hang := make(chan struct{})
				a, b, letGo := c.join(hang), c.join(nil), sync.OnceFunc(func() { close(hang) })
				t.Cleanup(letGo)
				c.shares("1 1", a, b)
				for range 60 { // more than the window: some wait in the reader
					c.add()
				}
				// An instance that stood still for the time of its lease begins again.
				require.Eventually(t, func() bool { return c.distinct() >= 60+20 }, patience, tick)
				a.proxy.SetDown(true)
				c.shares("2 0", b, a)
				c.handled()
				require.NoError(t, b.sub.Drain(t.Context()))
				if deleted {
					for n := range 2 {
						require.NoError(t, c.admin.Del(t.Context(), redis.MetaKey(c.d.Stream(n))).Err())
					}
				}
				before, next := len(c.started()), c.next
				a.proxy.SetDown(false)
				letGo()
				c.shares("2", a)
				c.add()
				c.handled()
				for _, again := range c.started()[before:] {
					require.GreaterOrEqual(t, again.n, next, "started again")
				}
			})
		})
	}
}

// The owner goes on when the companion key was deleted, and no other instance takes its shard.
func TestTheMetaOfAnExclusiveShardIsDeleted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := exclusiveDomain(t, s, 2)
		a, b := c.join(nil), c.join(nil)
		c.shares("1 1", a, b)
		c.add()
		c.handled()
		owner := func(shard int) string {
			return c.admin.HGet(t.Context(), redis.MetaKey(c.d.Stream(shard)), "owner").Val()
		}
		owners, stood := owner(0)+owner(1), redistest.StoodStill(t, 500*time.Millisecond)
		for range 5 {
			before := stood()
			for n := range 2 {
				require.NoError(t, c.admin.Del(t.Context(), redis.MetaKey(c.d.Stream(n))).Err())
			}
			require.Eventually(t, func() bool { return owner(0) != "" && owner(1) != "" }, patience, tick)
			now := owner(0) + owner(1)
			if stood()-before < 2*time.Second { // else the leases may have ended
				require.Equal(t, owners, now)
			}
			owners = now
		}
		c.add()
		c.handled()
	})
}
