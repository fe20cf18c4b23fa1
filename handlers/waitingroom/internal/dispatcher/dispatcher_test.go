package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/wakeup"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// rig is one dispatcher on a Redis without other rooms.
type rig struct {
	*Dispatcher
	t        *testing.T
	redis    *redis.Plugin
	admin    *goredis.Client
	rooms    *room.Store
	proxy    *redistest.Proxy
	dead     *pipelinetest.Recorder
	hangs    bool // the server does not answer
	database int
}

func (*rig) Name() string { return "site" }

// Register implements pipeline.Plugin.
func (r *rig) Register(registry *pipeline.Registry) error {
	r.Dispatcher.Register(registry)
	return nil
}

// start starts a dispatcher.
func start(t *testing.T, s redistest.Server, change func(*Config)) *rig {
	t.Helper()
	database := s.Database(t)
	r := &rig{
		t: t, database: database, redis: redis.New(), admin: s.Client(t, func(o *goredis.Options) { o.DB = database }), proxy: redistest.NewProxy(t, s.Addr),
		dead: pipelinetest.NewRecorder("dead"),
	}
	c := r.redis.Settings().(*redis.Config)
	c.Addrs, c.DB, c.PollInterval = []string{r.proxy.Addr()}, database, 20*time.Millisecond
	server := r.redis.Server(nil)
	config := DefaultConfig()
	config.PromoteInterval = 100 * time.Millisecond
	if change != nil {
		change(&config)
	}
	require.NoError(t, config.Validate())
	r.rooms = room.New(server, room.Options{
		PromoteInterval: config.PromoteInterval, PromoteBatch: 2, TokenTTL: time.Minute, ReadyTTL: time.Minute, Grace: time.Minute,
		SeenInterval: time.Minute, ClearAfter: time.Hour, MaxEvents: 1000,
	})
	r.Dispatcher = New(Options{Config: config, Rooms: r.rooms, Redis: r.redis, Server: server, DeadLetter: r.dead})
	registry, err := pipeline.NewRegistry(pipeline.Env{Instance: "test-" + watermill.NewULID(), Logger: redistest.Logger(t)}, r.redis, r)
	require.NoError(t, err)
	require.NoError(t, registry.CheckCollectors())
	chain := middleware.New(registry, middleware.Options{})
	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{Wrap: chain.Wrap, StopTimeout: 10 * time.Second})
	require.NoError(t, runtime.Start(t.Context()))
	t.Cleanup(func() {
		r.proxy.SetDown(r.hangs)
		if err := runtime.Stop(context.Background()); !r.hangs {
			require.NoError(t, err)
		}
	})
	return r
}

// open opens a room with ten slots, and queues users of an instance.
func (r *rig) open(event, instance string, users ...string) {
	r.t.Helper()
	seats := int64(10)
	_, err := r.rooms.Control(r.t.Context(), event, room.Change{Verb: room.Open, By: "test", Capacity: &seats})
	require.NoError(r.t, err)
	for _, user := range users {
		_, err := r.rooms.Enter(r.t.Context(), event, user, instance, 0)
		require.NoError(r.t, err)
	}
}

// dispatched returns the users in the stream of an instance.
func (r *rig) dispatched(instance string) (users []string) {
	entries, err := r.admin.XRange(r.t.Context(), room.DispatchStream(instance), "-", "+").Result()
	require.NoError(r.t, err)
	for _, e := range entries {
		users = append(users, e.Values["userId"].(string))
	}
	return users
}

func (r *rig) count(c prometheus.Collector) int { return int(testutil.ToFloat64(c)) }

// stall sets the last tick that succeeded back by a minute.
func (d *Dispatcher) stall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.progressed = time.Now().Add(-time.Minute)
}

// Several calls of the script belong to one tick. The users are sent to the instances that have
// their connections.
func TestPromotedUsersAreRouted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, nil)
		r.open("e", "a", "1", "2", "3", "4", "5")
		redistest.Eventually(t, "all are routed", func() bool { return len(r.dispatched("a")) == 5 })
		require.ElementsMatch(t, []string{"1", "2", "3", "4", "5"}, r.dispatched("a"))
		redistest.Eventually(t, "all are counted", func() bool {
			return r.count(r.metrics.promoted.WithLabelValues("e")) == 5 && r.gauge("millrace_room_slots_free") == 5
		})
		require.Zero(t, r.count(r.metrics.rerouted))
		r.stall()
		redistest.Eventually(t, "ready", func() bool { return r.progressing(t.Context()) == nil })
	})
}

// gauge returns the sum of the series of a metric.
func (r *rig) gauge(name string) (sum float64) {
	r.t.Helper()
	for _, s := range redistest.Gather(r.t, name, append(r.metrics.collectors(), r.metrics.labels.Collectors()...)...) {
		sum += s.Value
	}
	return sum
}

// W6: the user has moved to another instance between promotion and routing.
func TestAUserThatHasMoved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, nil)
		r.open("e", "a", "u")
		redistest.Eventually(t, "promoted", func() bool { return len(r.dispatched("a")) == 1 })
		_, err := r.rooms.Enter(t.Context(), "e", "u", "b", 0)
		require.NoError(t, err)
		for _, user := range []string{"without a place", "u"} {
			require.NoError(t, r.admin.XAdd(t.Context(), &goredis.XAddArgs{
				Stream: room.EntryStream("e"), Values: []any{"userId", user, "eventId", "e", "instanceId", "a"},
			}).Err())
		}
		redistest.Eventually(t, "routed to b", func() bool { return len(r.dispatched("b")) == 1 })
		require.Equal(t, 1, r.count(r.metrics.rerouted))
		require.Equal(t, []string{"u"}, r.dispatched("a"))
	})
}

// The entries only wake: a broker whose stream can not be written finds the promotion itself.
func TestAStreamThatCanNotBeWrittenFailsNoEntry(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, nil)
		r.open("e", "a")
		require.NoError(t, r.admin.Set(t.Context(), room.DispatchStream("a"), "text", 0).Err())
		r.open("e", "a", "1")
		r.open("e", "b", "2")
		users := []wakeup.User{{ID: "1", Event: "e", Instance: "a"}, {ID: "2", Event: "e", Instance: "b"}}
		require.NoError(t, r.route(t.Context(), "e", users))
		require.Contains(t, r.dispatched("b"), "2")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, r.route(ctx, "e", users), "at the end of the process another one routes them")
	})
}

// An entry that can't be read becomes a dead letter, and the others are routed.
func TestABadEntryStopsNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, nil)
		r.open("e", "a")
		for _, user := range []string{"", "\x00"} {
			require.NoError(t, r.admin.XAdd(t.Context(), &goredis.XAddArgs{
				Stream: room.EntryStream("e"), Values: []any{"userId", user, "eventId", "e", "instanceId", "a"},
			}).Err())
		}
		r.open("e", "a", "u")
		redistest.Eventually(t, "routed", func() bool { return len(r.dispatched("a")) == 1 && len(r.dead.Messages()) == 2 })
	})
}

// An event whose keys are broken stops no other, and the instance stays ready.
func TestABrokenEventStopsNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, func(c *Config) { c.Promoter.Workers, c.Promoter.Queue = 1, 0 })
		require.NoError(t, r.admin.Set(t.Context(), "ROOM:{broken}", "text", 0).Err())
		require.NoError(t, r.admin.SAdd(t.Context(), "ROOMS", "broken").Err())
		for _, event := range []string{"e", "f", "g"} {
			r.open(event, "a", event)
		}
		redistest.Eventually(t, "the others are promoted", func() bool { return len(r.dispatched("a")) == 3 })
		r.stall()
		redistest.Eventually(t, "ready", func() bool { return r.progressing(t.Context()) == nil })
	})
}

// Ticks that would overlap are missed. Without a tick the instance is not ready.
func TestTicksAreMissedWhileTheServerHangs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, nil)
		r.open("e", "a", "1")
		redistest.Eventually(t, "promoted", func() bool { return len(r.dispatched("a")) == 1 })
		missed := r.count(r.metrics.missed)
		r.hangs = true
		r.proxy.Mute()
		r.proxy.Cut()
		redistest.Eventually(t, "ticks are missed", func() bool { return r.count(r.metrics.missed) > missed })
		r.stall()
		require.ErrorContains(t, r.progressing(t.Context()), "no tick of any event has succeeded for 1m")
	})
}

// W10: the streams of dead instances are deleted, and those of live ones stay.
func TestStreamsOfDeadInstancesAreDeleted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, nil)
		other := redis.New()
		c := other.Settings().(*redis.Config)
		c.Addrs, c.DB = []string{s.Addr}, r.database
		registry, err := pipeline.NewRegistry(pipeline.Env{Instance: "dead", Logger: redistest.Logger(t)}, other)
		require.NoError(t, err)
		runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{StopTimeout: 10 * time.Second})
		require.NoError(t, runtime.Start(t.Context()))
		for _, instance := range []string{"dead", "never seen"} {
			require.NoError(t, r.rooms.Route(t.Context(), instance, "e", "u"))
		}
		r.clean(t.Context())
		require.Len(t, r.dispatched("dead"), 1, "it is alive")
		require.Len(t, r.dispatched("never seen"), 1)
		require.NoError(t, runtime.Stop(context.Background()))
		r.clean(t.Context())
		require.Empty(t, r.dispatched("dead"))
		require.Empty(t, r.dispatched("never seen"), "not in two rounds")
		require.NoError(t, r.rooms.Route(t.Context(), "later", "e", "u"))
		r.clean(t.Context())
		require.Len(t, r.dispatched("later"), 1, "not in one round")
		instances, err := r.rooms.Instances(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"later"}, instances)
	})
}
