package redis_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// domain declares a domain with a prefix of its own, and deletes its streams at the end.
func domain(t *testing.T, s redistest.Server, shards int) (redis.DomainConfig, goredis.UniversalClient) {
	t.Helper()
	admin := s.Client(t)
	d := redis.DomainConfig{Prefix: redistest.Prefix(t, admin) + ":events", Shards: shards, Group: group}
	return d, admin
}

// withDomains starts the plugin alone with domains in its settings.
func withDomains(t *testing.T, s redistest.Server, domains ...redis.DomainConfig) *redis.Plugin {
	t.Helper()
	p, _, err := start(t, s.Addr, "test-"+watermill.NewULID(), redistest.Logger(t))
	require.NoError(t, err)
	settings(p).Domains = domains
	return p
}

func settings(p *redis.Plugin) *redis.Config {
	cfg, _ := p.Settings().(*redis.Config)
	return cfg
}

func add(t *testing.T, c goredis.UniversalClient, stream, payload string) string {
	t.Helper()
	id, err := c.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: entry.Entry{Message: []byte(payload)}.Values()}).Result()
	require.NoError(t, err)
	return id
}

// One entry of the list is one route over all its shards, and the handler sees from
// which of them a message comes.
func TestADomainIsOneRoute(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		d, admin := domain(t, s, 4)
		p := redis.New()
		cfg := settings(p)
		cfg.Addrs, cfg.Domains = []string{s.Addr}, []redis.DomainConfig{d}
		cfg.PollInterval, cfg.InitialPollInterval = 20*time.Millisecond, time.Millisecond
		var mu sync.Mutex
		seen := map[string]string{}
		pipelinetest.Start(t, p, onePlugin{pipeline.Route{
			Name: "events", From: p.Domain(d.Prefix).Source(), Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
			Handle: func(m *message.Message) ([]*message.Message, error) {
				o := pipeline.DeliveryFrom(m.Context())
				mu.Lock()
				defer mu.Unlock()
				seen[o.String()] = fmt.Sprintf("%s %s %d", m.Payload, o.Group, o.Delivered)
				return nil, nil
			},
		}})
		want := map[string]string{}
		for shard := range 4 {
			for n := range 5 {
				id := add(t, admin, d.Stream(shard), fmt.Sprint(shard, n))
				want[d.Stream(shard)+"@"+id] = fmt.Sprint(shard, n) + " g 1"
			}
		}
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) == len(want)
		}, patience, tick)
		require.Equal(t, want, seen)
		require.Eventually(t, func() bool {
			for shard := range 4 {
				if pending, err := admin.XPending(t.Context(), d.Stream(shard), group).Result(); err != nil || pending.Count != 0 {
					return false
				}
			}
			return true
		}, patience, tick, "all acknowledged")
	})
}

// A shard whose key has another type delays no other. It is read once it has a stream.
func TestABadShardDelaysNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		d, admin := domain(t, s, 3)
		p := withDomains(t, s, d)
		require.NoError(t, admin.Set(t.Context(), d.Stream(1), "not a stream", 0).Err())
		sub, err := p.Domain(d.Prefix).Source().Open(t.Context(), pipeline.Flow{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		out, err := sub.Subscribe(t.Context(), "")
		require.NoError(t, err)
		add(t, admin, d.Stream(0), "first")
		require.Equal(t, "first", string(redistest.ReceiveAck(t, out).Payload))
		add(t, admin, d.Stream(2), "last")
		require.Equal(t, "last", string(redistest.ReceiveAck(t, out).Payload))
		require.NoError(t, admin.Del(t.Context(), d.Stream(1)).Err())
		add(t, admin, d.Stream(1), "fixed")
		require.Equal(t, "fixed", string(redistest.ReceiveAck(t, out).Payload))
	})
}

func TestADomainWithoutAnyShardCannotBeOpened(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		d, admin := domain(t, s, 2)
		p := withDomains(t, s, d)
		for i := range d.Shards {
			require.NoError(t, admin.Set(t.Context(), d.Stream(i), "not a stream", 0).Err())
		}
		_, err := p.Domain(d.Prefix).Source().Open(t.Context(), pipeline.Flow{})
		require.ErrorContains(t, err, d.Stream(0)+": WRONGTYPE")
		require.ErrorContains(t, err, d.Stream(1)+": WRONGTYPE")
		require.Empty(t, p.Domain(d.Prefix).Reading())
	})
}

// A window is of each shard; MaxInFlight is of all of them together.
func TestDomainSlots(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		tests := []struct {
			name string
			flow pipeline.Flow
			want []int // by shard
		}{
			{"the plugin's default", pipeline.Flow{}, []int{16, 16, 16}},
			{"window", pipeline.Flow{Window: 2}, []int{2, 2, 2}},
			{"most in flight", pipeline.Flow{MaxInFlight: 5}, []int{2, 2, 1}},
			{"the smaller of both", pipeline.Flow{Window: 2, MaxInFlight: 9}, []int{2, 2, 2}},
			{"ordered", pipeline.Flow{Order: pipeline.OrderKey, Window: 8}, []int{1, 1, 1}},
		}
		d, _ := domain(t, s, 3)
		p := withDomains(t, s, d)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				sub, err := p.Domain(d.Prefix).Source().Open(t.Context(), tt.flow)
				require.NoError(t, err)
				var slots []int
				for _, shard := range p.Domain(d.Prefix).Reading() {
					slots = append(slots, shard.Reader.Stats().Concurrency)
				}
				require.Equal(t, tt.want, slots)
				require.NoError(t, sub.Close())
			})
		}
		_, err := p.Domain(d.Prefix).Source().Open(t.Context(), pipeline.Flow{MaxInFlight: 2})
		require.ErrorContains(t, err, "MaxInFlight must be at least the number of shards")
	})
}

func TestWhatIsBeingReadOfADomain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		d, _ := domain(t, s, 2)
		p := withDomains(t, s, d)
		dom := p.Domain(d.Prefix)
		require.Same(t, dom, p.Domain(d.Prefix))
		require.Equal(t, []*redis.Domain{dom}, p.TakeDomains())
		require.Empty(t, dom.Reading(), "not opened")
		var open atomic.Bool
		open.Store(true)
		sub, err := dom.Source().Open(t.Context(), pipeline.Flow{Gate: open.Load})
		require.NoError(t, err)
		_, err = dom.Source().Open(t.Context(), pipeline.Flow{})
		require.ErrorContains(t, err, "being read here already")
		shards := dom.Reading()
		require.Len(t, shards, 2)
		require.Equal(t, d.Stream(1), shards[1].Stream)
		require.Equal(t, 1, shards[1].Index)
		require.Equal(t, group, shards[1].Group)
		require.Contains(t, shards[1].Consumer, "test-")
		open.Store(false)
		require.Empty(t, dom.Reading(), "the gate is closed")
		open.Store(true)
		require.NoError(t, sub.Drain(t.Context()))
		require.Empty(t, dom.Reading(), "drained")
		again, err := dom.Source().Open(t.Context(), pipeline.Flow{})
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
}

// Without plugins/reclaim the shards' readers look for themselves; with it they leave that to it.
func TestWhoReclaimsFromADomain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprint("taken ", taken), func(t *testing.T) {
				d, admin := domain(t, s, 2)
				p := withDomains(t, s, d)
				if taken {
					p.TakeDomains()
				}
				require.NoError(t, admin.XGroupCreateMkStream(t.Context(), d.Stream(1), group, "0").Err())
				id := add(t, admin, d.Stream(1), "left behind")
				require.NoError(t, admin.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "other", Streams: []string{d.Stream(1), ">"}, Block: -1}).Err())
				require.NoError(t, giveBack(t, admin, d, id))
				sub, err := p.Domain(d.Prefix).Source().Open(t.Context(), pipeline.Flow{})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, sub.Close()) })
				out, err := sub.Subscribe(t.Context(), "")
				require.NoError(t, err)
				if !taken {
					require.Equal(t, "left behind", string(redistest.ReceiveAck(t, out).Payload))
					return
				}
				add(t, admin, d.Stream(1), "fresh")
				require.Equal(t, "fresh", string(redistest.ReceiveAck(t, out).Payload))
				pending, err := admin.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: d.Stream(1), Group: group, Consumer: "other", Start: "-", End: "+", Count: 10}).Result()
				require.NoError(t, err)
				require.Len(t, pending, 1)
			})
		}
	})
}

func giveBack(t *testing.T, c goredis.UniversalClient, d redis.DomainConfig, id string) error {
	t.Helper()
	n, err := poll.Consumer{Client: c, Stream: d.Stream(1), Group: group, Name: "other"}.Release(t.Context(), redis.DefaultConfig().MinIdle, id)
	require.Equal(t, 1, n)
	return err
}

// The policy's longest hold reaches the reader: after it, the entry of a handler is not kept alive.
// The settings apply to an entry that waits behind it: a release would count a delivery that did
// not happen.
func TestTheLongestHoldOfTheRoute(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel() // it is all waiting
		r := redistest.NewRig(t, s)
		r.Add(0, 3)
		p, _, err := start(t, s.Addr, "test-"+watermill.NewULID(), redistest.Logger(t))
		require.NoError(t, err)
		const minIdle = 4500 * time.Millisecond // a machine may stand still for two thirds of it
		cfg := settings(p)
		cfg.MinIdle, cfg.ReclaimInterval = minIdle, 0
		require.Greater(t, cfg.LongestHold, time.Minute, "by the settings it would be kept")
		sub, err := p.Source(r.Stream, group).Open(t.Context(), pipeline.Flow{Window: 1, LongestHold: 500 * time.Millisecond})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		out, err := sub.Subscribe(t.Context(), "")
		require.NoError(t, err)
		m := redistest.Receive(t, out)
		require.Eventually(t, func() bool {
			p := r.Pending()
			return len(p) == 3 && p[0].Idle >= minIdle && p[1].Idle < minIdle && p[2].Idle < minIdle
		}, patience, tick, "the first is kept alive, or the others were released, or not kept alive")
		m.Ack()
		for _, payload := range []string{"1", "2"} {
			m = redistest.ReceiveAck(t, out)
			require.Equal(t, payload, string(m.Payload))
			require.EqualValues(t, 1, pipeline.DeliveryFrom(m.Context()).Delivered)
		}
		r.NothingPending()
	})
}

func TestADomainThatTheSettingsDoNotHave(t *testing.T) {
	t.Parallel()
	p := redis.New()
	settings(p).Domains = []redis.DomainConfig{{Prefix: "scan:events", Shards: 4, Group: "router", MaxDeliveries: 7}}
	src := p.Domain("scan:events").Source()
	require.Equal(t, pipeline.Endpoint{Kind: "redis-stream", Name: "scan:events:<0…3>", Group: "router"}, src.Describe())
	require.Equal(t, 7, src.(pipeline.Limiter).MaxDeliveries())
	require.Equal(t, "scan", p.Domain("scan:events").Name())
	_, err := src.Open(t.Context(), pipeline.Flow{})
	require.ErrorContains(t, err, "not been started")
	c, err := p.Domain("scan:events").Config()
	require.NoError(t, err)
	require.Equal(t, redis.DomainConfig{
		Prefix: "scan:events", Shards: 4, Group: "router", MaxDeliveries: 7,
		Concurrency: 16, BatchSize: 10, PollInterval: 100 * time.Millisecond, MaxLen: 100_000,
	}, c)

	src = p.Domain("chat:events").Source()
	require.Equal(t, "chat:events:<not in plugins.redis.domains>", src.Describe().Name)
	_, err = src.Open(t.Context(), pipeline.Flow{})
	require.EqualError(t, err, `plugins.redis.domains: no domain has the prefix "chat:events"`)
}

func TestValidateDomains(t *testing.T) {
	t.Parallel()
	cfg := redis.DefaultConfig()
	cfg.Domains = []redis.DomainConfig{
		{Prefix: "scan:events", Shards: 4, Group: "router"},
		{Prefix: "scan:events", Shards: 4, Group: "router"},
		{Shards: 1025, MaxDeliveries: -1, Concurrency: -1, BatchSize: -1, PollInterval: -1, Keep: -1, MaxLen: -1},
		{Prefix: "a{}b", Shards: 1, Group: "g"}, {Prefix: "a}b", Shards: 1, Group: "g"}, {Prefix: "a{b", Shards: 1, Group: "g"},
		{Prefix: "}{a}b", Shards: 1, Group: "g"},
	}
	err := cfg.Validate()
	for _, want := range []string{
		`domains[1].prefix: "scan:events" is in the list already`, "domains[2].prefix: must not be empty",
		"domains[2].shards: must be 1..1024, got 1025", "domains[2].group: must not be empty", "domains[2].max_deliveries: must be >= 0, got -1",
		"domains[2].concurrency: must be >= 0, got -1", "domains[2].batch_size: must be >= 0, got -1", "domains[2].poll_interval: must be >= 0, got -1ns",
		"domains[2].keep: must be >= 0, got -1ns", "domains[2].max_len: must be >= 0, got -1",
		`domains[3].prefix: its braces must enclose a hash tag, as in {scan}:events, got "a{}b"`, "domains[4].prefix: its braces", "domains[5].prefix: its braces",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "domains[6]")
	cfg.Domains = slices.Clip(cfg.Domains[:1])
	require.NoError(t, cfg.Validate())
}
