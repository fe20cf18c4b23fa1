package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/producer"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis"
)

// All that the event router writes to Redis leaves it again. MILLRACE_JOB_EVENTS is the number of
// events; the lifetimes are then one minute, and the test waits for all of them.
func TestRedisKeepsNothingOfJobsThatHaveExpired(t *testing.T) {
	tier.Rest(t, tier.Router, tier.Redis)
	events, lifetime, full := 50_000, "5s", false
	if text := os.Getenv("MILLRACE_JOB_EVENTS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		events, lifetime, full = n, "1m", true
	}
	for _, setting := range []string{"EVENTROUTER__STATE_TTL", "EVENTROUTER__LOG_TTL", "EVENTROUTER__LOG_TTL_AFTER_END"} {
		t.Setenv("MILLRACE__PLUGINS__"+setting, lifetime)
	}
	t.Setenv("MILLRACE__PLUGINS__REDIS__REQUIRED_GROUPS", "audit")
	server := startNode(t, "redis-server")
	tier.Met(t, "redis")
	startJobs(t, server.addr, "first")
	startJobs(t, server.addr, "second")
	r := newLifetimes(t, server)
	r.full = full
	shards := make([]string, r.domain.Shards)
	for i := range shards {
		shards[i] = r.domain.Stream(i)
	}

	// A few events make what stays: groups, scripts, and the buffers of the connections.
	r.publish("warm", 500)
	r.emptied(shards...)
	r.expired()
	keys, start := r.memory()

	began := time.Now()
	peak := r.publish("run", events)
	published := time.Since(began)
	r.emptied(shards...)

	// A group that has acknowledged nothing keeps its entries, and only those.
	for _, shard := range shards {
		require.NoError(t, server.XGroupCreate(t.Context(), shard, "audit", "$").Err())
	}
	r.publish("kept", 1000)
	require.EqualValues(t, 1000, r.entries(shards...))
	kept := r.entries(shards[4:]...)
	for _, shard := range shards[:4] {
		require.NoError(t, server.XGroupDestroy(t.Context(), shard, "audit").Err())
	}
	r.emptied(shards[:4]...)
	require.Equal(t, kept, r.entries(shards[4:]...))
	for _, shard := range shards[4:] {
		require.NoError(t, server.XGroupDestroy(t.Context(), shard, "audit").Err())
	}
	r.emptied(shards...)

	r.expired()
	require.Greater(t, peak, start+4*tolerance, "the events filled Redis")
	r.patiently("the memory is that of the start", func() error {
		keysNow, used := r.memory()
		t.Logf("%d events in %s: %d keys and %.2f MB at the start, %.1f MB at most, now %d keys and %.2f MB",
			events, published.Round(time.Second), keys, mb(start), mb(peak), keysNow, mb(used))
		if keysNow != keys || used > start+tolerance {
			return errors.New("not yet")
		}
		return nil
	})
}

// tolerance is for buffers of connections and the like.
const tolerance = 1 << 20

func mb(n int64) float64 { return float64(n) / (1 << 20) }

// lifetimes publishes events, and waits for their end.
type lifetimes struct {
	*node
	t        *testing.T
	full     bool // all lifetimes pass
	domain   redis.DomainConfig
	producer *producer.Producer
}

func newLifetimes(t *testing.T, server *node) *lifetimes {
	own := redis.DefaultClientConfig()
	own.Addrs = []string{server.addr}
	connected := redis.New().Server(&own)
	require.NoError(t, connected.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, connected.Stop(context.Background())) })
	r := &lifetimes{node: server, t: t, domain: redis.DomainConfig{Prefix: "scan:events", Shards: 8, Group: "eventrouter"}}
	r.producer = producer.New(connected, r.domain, event.DefaultStages())
	r.producer.CounterTTL = 2 * time.Minute
	return r
}

// publish adds n events of jobs with 20 events each, and returns the largest memory of Redis. One
// job in five never ends. Each tenth event is transient. Half of the jobs have numbers of the
// script.
func (r *lifetimes) publish(run string, n int) (peak int64) {
	const perJob, jobsPerCall = 20, 25
	var calls errgroup.Group
	calls.SetLimit(2)
	for first := 0; first < n/perJob; first += jobsPerCall {
		calls.Go(func() error {
			var events []*event.Event
			for job := first; job < min(n/perJob, first+jobsPerCall); job++ {
				seq := int64(0)
				for i := 1; i <= perJob; i++ {
					e := &event.Event{Domain: "scan", JobID: fmt.Sprint(run, "-", job), Stage: "scan", Data: fmt.Appendf(nil, `{"percent":%d}`, i)}
					switch {
					case i%10 == 5:
						e.Stage = "token"
					case i == perJob && job%5 > 0:
						e.Stage = "done"
						fallthrough
					default:
						seq++
					}
					if job%2 == 0 && e.Stage != "token" {
						e.Seq = seq
					}
					events = append(events, e)
				}
			}
			for {
				err := r.producer.Publish(r.t.Context(), events...)
				if !errors.Is(err, producer.ErrFull) || !loop.Sleep(r.t.Context(), 100*time.Millisecond) {
					return err
				}
			}
		})
		if first%(40*jobsPerCall) == 0 {
			_, used := r.memory()
			peak = max(peak, used)
		}
	}
	require.NoError(r.t, calls.Wait())
	_, used := r.memory()
	return max(peak, used)
}

// entries returns the number of entries of shards.
func (r *lifetimes) entries(shards ...string) (n int64) {
	for _, shard := range shards {
		n += r.XLen(r.t.Context(), shard).Val()
	}
	return n
}

// emptied waits until shards are empty: acknowledged and trimmed.
func (r *lifetimes) emptied(shards ...string) {
	r.t.Helper()
	r.patiently("the shards are empty", func() error {
		if n := r.entries(shards...); n > 0 {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	})
}

// expired waits until no key of a job is left. Unless the run is full, the markers of the producer,
// which live for two minutes, expire at once.
func (r *lifetimes) expired() {
	r.t.Helper()
	r.patiently("all keys of jobs expire", func() error {
		found := 0
		for cursor := uint64(0); ; {
			keys, next, err := r.Scan(r.t.Context(), cursor, "*", 1000).Result()
			if err != nil {
				return err
			}
			keys = slices.DeleteFunc(keys, func(key string) bool {
				return !slices.ContainsFunc([]string{":added:", ":seq:", "scan:log:", "scan:state:", "scan:feed:"}, func(part string) bool { return strings.Contains(key, part) })
			})
			if found += len(keys); found > 0 && r.full {
				return fmt.Errorf("%s and others", keys[0])
			}
			if err := r.expire(keys); err != nil {
				return err
			}
			if cursor = next; cursor > 0 {
				continue
			}
			if found > 0 {
				return fmt.Errorf("%d keys", found)
			}
			return nil
		}
	})
}

// expire checks that each key has a lifetime, and ends that of markers.
func (r *lifetimes) expire(keys []string) error {
	pipe := r.Pipeline()
	lives := make([]*goredis.DurationCmd, len(keys))
	for i, key := range keys {
		lives[i] = pipe.PTTL(r.t.Context(), key)
		if strings.Contains(key, ":added:") || strings.Contains(key, ":seq:") {
			pipe.PExpire(r.t.Context(), key, time.Millisecond)
		}
	}
	_, err := pipe.Exec(r.t.Context())
	for i, life := range lives {
		require.NotEqual(r.t, time.Duration(-1), life.Val(), "%s has no lifetime", keys[i])
	}
	return err
}

// patiently waits until check returns nil.
func (r *lifetimes) patiently(what string, check func() error) {
	r.t.Helper()
	require.NoError(r.t, until(r.t.Context(), 10*time.Minute, what, check))
}

// memory returns the number of keys, and the memory of Redis without what its allocator has kept.
func (r *lifetimes) memory() (keys, used int64) {
	r.t.Helper()
	require.NoError(r.t, r.Do(r.t.Context(), "MEMORY", "PURGE").Err())
	info, err := r.InfoMap(r.t.Context(), "memory").Result()
	require.NoError(r.t, err)
	used, err = strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	require.NoError(r.t, err)
	keys, err = r.DBSize(r.t.Context()).Result()
	require.NoError(r.t, err)
	return keys, used
}
