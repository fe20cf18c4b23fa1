package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// instance is a whole process but for its walls: the plugins, the chain and the runtime, with a
// route a domain.
type instance struct {
	name string
	dead *pipelinetest.Recorder
	log  *redistest.Lines
	reg  *pipeline.Registry
	rt   *pipeline.Runtime

	mu   sync.Mutex
	runs []run
}

// run is one run of a handler.
type run struct {
	stream, id, payload string
	delivered           int64
}

// entry names the entry over all streams: two streams can give the same id in one millisecond.
func (r run) entry() string { return r.stream + "@" + r.id }

// instanceConfig is what differs between the instances of these tests.
type instanceConfig struct {
	addr    string // empty: the server's own
	domains []redis.DomainConfig
	family  *redis.FamilyOptions // nil: none
	minIdle time.Duration
	again   int // redeliveries by the same reader
	slots   int // zero: the default
	handle  func(run) error
	policy  pipeline.Policy
}

// newInstance starts an instance; it is stopped at the end of the test.
func newInstance(t *testing.T, s server, c instanceConfig) *instance {
	t.Helper()
	in := &instance{name: s.prefix + "-" + watermill.NewShortUUID(), dead: pipelinetest.NewRecorder("dead"), log: &redistest.Lines{}}
	shared := redis.New()
	rc, _ := shared.Settings().(*redis.Config)
	if c.addr == "" {
		c.addr = s.Addr
	}
	rc.Addrs, rc.Domains, rc.MinIdle = []string{c.addr}, c.domains, c.minIdle
	rc.PollInterval, rc.InitialPollInterval, rc.MaxRedeliveries = 20*time.Millisecond, time.Millisecond, c.again
	rc.Redelivery = pipeline.Backoff{First: time.Millisecond, Max: time.Millisecond}
	claims := New(shared)
	claims.config = quick()
	claims.config.MinIdle = c.minIdle
	if c.slots > 0 {
		rc.Concurrency = c.slots
	}
	if c.policy.DeadLetter == nil {
		c.policy.DeadLetter = in.dead
	}
	env := pipeline.Env{Instance: in.name, Logger: slog.New(slog.NewTextHandler(in.log, nil))}
	var err error
	in.reg, err = pipeline.NewRegistry(env, shared, claims, routes{shared, claims, c, in})
	require.NoError(t, err)
	chain := middleware.New(in.reg, middleware.Options{})
	in.rt = pipeline.NewRuntime(in.reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, StopTimeout: 10 * time.Second})
	require.NoError(t, in.rt.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, in.rt.Stop(context.Background())) })
	return in
}

// routes is a handler plugin with one route a domain.
type routes struct {
	redis  *redis.Plugin
	claims *Plugin
	c      instanceConfig
	in     *instance
}

func (routes) Name() string { return "toy" }

func (p routes) Register(r *pipeline.Registry) error {
	var sources []pipeline.Source
	for _, d := range p.c.domains {
		sources = append(sources, p.redis.Domain(d.Prefix).Source())
	}
	if p.c.family != nil {
		f := p.redis.Family(*p.c.family)
		r.Offer(Shards(f))
		sources = append(sources, f.Source())
	}
	for i, from := range sources {
		r.Route(pipeline.Route{
			Name: fmt.Sprintf("toy.%d", i), From: from, Policy: p.c.policy,
			Handle: func(m *message.Message) ([]*message.Message, error) {
				d := pipeline.DeliveryFrom(m.Context())
				n := run{d.Source, entryIDOf(d.Origin), string(m.Payload), d.Delivered}
				p.in.mu.Lock()
				p.in.runs = append(p.in.runs, n)
				p.in.mu.Unlock()
				if p.c.handle == nil {
					return nil, nil
				}
				return nil, p.c.handle(n)
			},
		})
	}
	return nil
}

func (in *instance) ran() []run {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.runs)
}

// deliveries returns the delivery counts of the runs of a payload.
func (in *instance) deliveries(payload string) (counts []int64) {
	for _, r := range in.ran() {
		if r.payload == payload {
			counts = append(counts, r.delivered)
		}
	}
	return counts
}

// countOn says that each delivery counted on from the one before. On a busy machine one may be
// missing: an entry that has waited too long for its slot is read or claimed again.
func countOn(t *testing.T, counts []int64) {
	t.Helper()
	require.NotEmpty(t, counts)
	require.True(t, slices.IsSorted(counts) && len(slices.Compact(slices.Clone(counts))) == len(counts), "%v", counts)
}

// metric returns a counter of the instance by its labels.
func (in *instance) metric(t testing.TB, name string, labels map[string]string) (value float64) {
	t.Helper()
	all := prometheus.NewRegistry()
	for _, c := range in.reg.Collectors() {
		require.NoError(t, all.Register(c))
	}
	families, err := all.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			if maps.Equal(got, labels) {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

// domain declares a domain with names of the test's own.
func (s server) domain(name string, shards int) redis.DomainConfig {
	return redis.DomainConfig{Prefix: s.prefix + name + ":events", Shards: shards, Group: "g"}
}

// left adds n entries to every shard of a domain and has them read by a consumer that is never seen
// again.
func (s server) left(t testing.TB, d redis.DomainConfig, consumer string, n int) (ids []run) {
	t.Helper()
	dead, _ := instanceOf(consumer)
	require.NoError(t, s.client.HSet(t.Context(), "millrace:instances", dead, time.Now().UnixMilli()).Err(), "it had a presence")
	for shard := range d.Shards {
		st := Stream{Name: d.Stream(shard), Group: d.Group}
		err := s.client.XGroupCreateMkStream(t.Context(), st.Name, st.Group, "0").Err()
		if err != nil {
			require.ErrorContains(t, err, "BUSYGROUP")
		}
		for i, id := range s.hold(t, st, consumer, n) {
			ids = append(ids, run{st.Name, id, fmt.Sprint(i), 2})
		}
	}
	return ids
}

func (s server) pending(t testing.TB, d redis.DomainConfig) (n int64) {
	t.Helper()
	for shard := range d.Shards {
		p, err := s.client.XPending(t.Context(), d.Stream(shard), d.Group).Result()
		require.NoError(t, err)
		n += p.Count
	}
	return n
}

// A killed instance held entries in all shards of two domains. The routes of another one handle
// each entry once, with its stream, id and delivery count. The metrics are per domain and shard.
func TestACrashWithEntriesInAllShardsOfTwoDomains(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		domains := []redis.DomainConfig{s.domain("scan", 4), s.domain("chat", 4)}
		var want []run
		for _, d := range domains {
			want = append(want, s.left(t, d, "killed-9-0", 7)...)
		}
		in := newInstance(t, s, instanceConfig{domains: domains, minIdle: time.Hour})
		redistest.Eventually(t, "all handled", func() bool { return len(in.ran()) >= len(want) })
		redistest.Eventually(t, "all acknowledged", func() bool { return s.pending(t, domains[0])+s.pending(t, domains[1]) == 0 })
		require.ElementsMatch(t, want, in.ran())
		for _, d := range domains {
			for shard := range d.Shards {
				labels := map[string]string{"domain": strings.TrimSuffix(d.Prefix, ":events"), "shard": fmt.Sprint(shard)}
				redistest.Eventually(t, "counted", func() bool {
					return in.metric(t, "millrace_reclaim_messages_total", labels) == 7 &&
						in.metric(t, "millrace_reclaim_readers_removed_total", labels) == 1
				})
				require.InDelta(t, 0, in.metric(t, "millrace_reclaim_failures_total", labels), 0)
			}
		}
		rounds := func() int { return in.log.Count(`msg="entries reclaimed"`) }
		redistest.Eventually(t, "logged", func() bool { return rounds() >= 2 })
		require.LessOrEqual(t, rounds(), 4, "a line only for a round that claimed something")
		require.Zero(t, in.log.Count("level=ERROR"))
	})
}

// The network of an instance fails while it has two entries of each shard in flight. It is back
// only after the other instance has finished.
func TestAnInstanceThatIsCutOffLosesNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		domains := []redis.DomainConfig{s.domain("scan", 4), s.domain("chat", 4)}
		p := newProxy(t, s.Addr)
		release := make(chan struct{})
		first := newInstance(t, s, instanceConfig{
			domains: domains, minIdle: time.Hour, addr: p.Addr().String(),
			handle: func(run) error { <-release; return errInjected },
		})
		t.Cleanup(func() { p.hang(false); close(release) }) // before it is stopped
		want := map[string]int64{}
		for _, d := range domains {
			for shard := range d.Shards {
				for _, id := range s.add(t, d.Stream(shard), "a", "b") {
					want[d.Stream(shard)+"@"+id] = 2
				}
			}
		}
		redistest.Eventually(t, "all in flight", func() bool { return len(first.ran()) == len(want) })
		p.hang(true)
		require.NoError(t, s.client.Del(t.Context(), "millrace:instance:"+first.name).Err(), "it would expire")
		second := newInstance(t, s, instanceConfig{domains: domains, minIdle: time.Hour})
		redistest.Eventually(t, "all acknowledged", func() bool {
			return len(second.ran()) >= len(want) && s.pending(t, domains[0])+s.pending(t, domains[1]) == 0
		})
		got := map[string]int64{}
		for _, r := range second.ran() {
			got[r.entry()] = r.delivered
		}
		require.Equal(t, want, got, "each once, for the second time")
		require.Len(t, second.ran(), len(want))
	})
}

// After an orderly stop the presence ends. The next check of another instance claims the entries
// that were not started, long before min_idle and presence_timeout.
func TestWhatAStoppedInstanceReturnedIsClaimedByTheNextCheck(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		dom := s.domain("scan", 1)
		ids := s.add(t, dom.Stream(0), "a", "b", "c") // before the first read, which takes all
		began, finish := make(chan struct{}), make(chan struct{})
		first := newInstance(t, s, instanceConfig{
			domains: []redis.DomainConfig{dom}, minIdle: time.Hour, slots: 1,
			handle: func(run) error { close(began); <-finish; return nil },
		})
		<-began
		require.EqualValues(t, 3, s.pending(t, dom))
		reader := &fakeReader{free: 10}
		st := Stream{Shard: "0", Name: dom.Stream(0), Group: dom.Group, Consumer: "me-1-0", Meta: redis.MetaKey(dom.Stream(0)), Reader: reader}
		c := quick()
		c.MinIdle, c.PresenceTimeout = time.Hour, time.Hour
		rig := newRig(c, "me-1", nil)
		rig.opts.Alive = func(ctx context.Context, instances ...string) (map[string]bool, error) {
			return redis.Alive(ctx, s.client, instances...)
		}
		d := newDomain(rig.Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		stopped := make(chan error, 1)
		go func() { stopped <- first.rt.Stop(context.Background()) }()
		redistest.Eventually(t, "the others are returned", func() bool {
			idle, err := s.client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{
				Stream: st.Name, Group: st.Group, Idle: time.Hour, Start: "-", End: "+", Count: 10,
			}).Result()
			return err == nil && len(idle) == 2
		})
		d.round(t.Context(), false)
		require.Empty(t, reader.got(), "a handler is still at work")
		close(finish)
		require.NoError(t, <-stopped)
		d.round(t.Context(), false)
		require.Equal(t, ids[1:], reader.got())
		require.EqualValues(t, 2, s.pending(t, dom), "the first is acknowledged")
	})
}

// A failed entry isn't acknowledged; it comes again in the next round,
// counted on.
func TestAFailureStaysPendingForTheNextRound(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		d := s.domain("scan", 2)
		in := newInstance(t, s, instanceConfig{
			domains: []redis.DomainConfig{d}, minIdle: 300 * time.Millisecond,
			handle: func(r run) error {
				if r.payload == "0" && r.delivered < 4 {
					return errInjected
				}
				return nil
			},
		})
		s.add(t, d.Stream(1), "0", "1")
		redistest.Eventually(t, "handled in the end", func() bool { return len(in.deliveries("1")) == 1 && s.pending(t, d) == 0 })
		counts := in.deliveries("0")
		countOn(t, counts)
		require.GreaterOrEqual(t, counts[len(counts)-1], int64(4))
		require.Empty(t, in.dead.Messages())
		domain := strings.TrimSuffix(d.Prefix, ":events")
		require.Positive(t, in.metric(t, "millrace_reclaim_claims_total", map[string]string{"domain": domain, "shard": "1", "reason": "idle"}))
		require.Positive(t, in.metric(t, "millrace_reclaim_latency_seconds", map[string]string{"domain": domain, "shard": "1"}))
		require.Zero(t, in.metric(t, "millrace_reclaim_latency_seconds", map[string]string{"domain": domain, "shard": "0"}), "nothing was found there, so nothing was sent")
	})
}

// Above its delivery limit an entry becomes a dead letter that says everything, and is
// acknowledged.
func TestAboveTheDeliveryLimitAnEntryIsADeadLetter(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		d := s.domain("scan", 2)
		d.MaxDeliveries = 3
		// It has killed each instance that read it: nine deliveries, and no recorded failure.
		deadly := s.left(t, redis.DomainConfig{Prefix: d.Prefix, Shards: 1, Group: d.Group}, "killed-9-0", 1)[0]
		require.NoError(t, s.client.Do(t.Context(), "XCLAIM", deadly.stream, d.Group, "killed-9-0", 0, deadly.id, "RETRYCOUNT", 9, "JUSTID").Err())
		in := newInstance(t, s, instanceConfig{
			domains: []redis.DomainConfig{d}, minIdle: time.Hour,
			handle: func(r run) error {
				if r.payload == "poison" {
					return errors.New("it never works")
				}
				return nil
			},
		})
		ids := s.add(t, d.Stream(1), "poison", "good")
		age := s.aging(t, d.Stream(1), d.Group)
		redistest.Eventually(t, "both dead", func() bool { age(); return len(in.dead.Messages()) == 2 })
		redistest.Eventually(t, "nothing is left", func() bool { return s.pending(t, d) == 0 })
		for _, r := range in.ran() {
			require.NotEqual(t, deadly.entry(), r.entry(), "it is not run again")
		}
		poison := in.deliveries("poison")
		countOn(t, poison)
		require.EqualValues(t, 3, poison[len(poison)-1])
		letters := map[string]*message.Message{}
		for _, m := range in.dead.Messages() {
			letters[m.Metadata.Get(pipeline.MetaDeadOrigin)] = m
			require.Equal(t, "delivery_limit", m.Metadata.Get(pipeline.MetaDeadClass))
			require.Equal(t, "toy.0", m.Metadata.Get(pipeline.MetaDeadHandler))
			require.NotEmpty(t, m.Metadata.Get(pipeline.MetaDeadFirstFailedAt))
		}
		m := letters[d.Stream(1)+"@"+ids[0]]
		require.NotNil(t, m)
		require.Equal(t, "poison", string(m.Payload))
		require.Equal(t, "3", m.Metadata.Get(pipeline.MetaDeadAttempts))
		require.Equal(t, "failed at delivery 3, the limit is 3: it never works", m.Metadata.Get(pipeline.MetaDeadError))
		m = letters[deadly.entry()]
		require.NotNil(t, m)
		require.Equal(t, "10", m.Metadata.Get(pipeline.MetaDeadAttempts))
	})
}

// Redeliveries by one reader and claims by others are one count: the limit bounds the runs.
func TestTheDeliveryLimitBoundsTheRuns(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		d := s.domain("scan", 1)
		d.MaxDeliveries = 8
		in := newInstance(t, s, instanceConfig{
			domains: []redis.DomainConfig{d}, minIdle: time.Hour, again: 2,
			handle: func(run) error { return errInjected },
		})
		s.add(t, d.Stream(0), "poison")
		age := s.aging(t, d.Stream(0), d.Group)
		redistest.Eventually(t, "dead", func() bool { age(); return len(in.dead.Messages()) == 1 && s.pending(t, d) == 0 })
		counts := in.deliveries("poison")
		countOn(t, counts)
		require.EqualValues(t, 8, counts[len(counts)-1])
		require.Equal(t, "8", in.dead.Messages()[0].Metadata.Get(pipeline.MetaDeadAttempts))
	})
}

// A retry topic is the way of a failure from a shard as of any other: the entry is acknowledged
// when the record is there.
func TestAReclaimedEntryThatFailsGoesToTheRetryTopic(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		d := s.domain("scan", 1)
		left := s.left(t, d, "killed-9-0", 1)[0]
		retry := pipelinetest.NewRecorder("retry")
		in := newInstance(t, s, instanceConfig{
			domains: []redis.DomainConfig{d}, minIdle: time.Hour, policy: pipeline.Policy{Retry: pipeline.Retry{To: retry, ReadElsewhere: true}},
			handle: func(run) error { return errInjected },
		})
		redistest.Eventually(t, "acknowledged", func() bool { return len(retry.Messages()) == 1 && s.pending(t, d) == 0 })
		require.Equal(t, []run{left}, in.ran())
		require.Equal(t, "1", retry.Messages()[0].Metadata.Get(pipeline.MetaAttempt))
	})
}

// Two whole instances over the same list: what a third one left behind is handled once, and so is
// what is fresh.
func TestTwoInstancesShareTheWork(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		d := s.domain("scan", 4)
		left := s.left(t, d, "killed-9-0", 20)
		c := instanceConfig{domains: []redis.DomainConfig{d}, minIdle: time.Hour}
		both := []*instance{newInstance(t, s, c), newInstance(t, s, c)}
		for shard := range d.Shards {
			for i := range 20 {
				s.add(t, d.Stream(shard), fmt.Sprint("fresh ", i))
			}
		}
		redistest.Eventually(t, "all acknowledged", func() bool {
			return len(both[0].ran())+len(both[1].ran()) >= 160 && s.pending(t, d) == 0
		})
		runs := map[string]int{}
		for _, r := range slices.Concat(both[0].ran(), both[1].ran()) {
			runs[r.entry()]++
		}
		require.Len(t, runs, 160)
		for _, r := range left {
			require.Equal(t, 1, runs[r.entry()])
		}
	})
}

func (s server) add(t testing.TB, stream string, payloads ...string) (ids []string) {
	t.Helper()
	for _, p := range payloads {
		id, err := s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: entry.Entry{Message: []byte(p)}.Values()}).Result()
		require.NoError(t, err)
		ids = append(ids, id)
	}
	return ids
}
