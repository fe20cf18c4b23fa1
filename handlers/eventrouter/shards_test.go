package eventrouter

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// Keys of another type stop a domain, and streams beyond the last shard are read by nobody.
func TestTheCheckOfTheShards(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		own := redis.DefaultClientConfig()
		own.Addrs = []string{s.Addr}
		server := redis.New().Server(&own)
		require.NoError(t, server.Start(t.Context()))
		client := s.Client(t)
		domain := redis.DomainConfig{Prefix: redistest.Prefix(t, client) + ":events", Shards: 2}
		var log strings.Builder
		c := newShardCheck(server, []redis.DomainConfig{domain}, slog.New(slog.NewTextHandler(&log, nil)))
		check := func() error {
			c.next = time.Time{}
			return c.check(t.Context())
		}
		require.NoError(t, check())
		require.NoError(t, client.Set(t.Context(), domain.Stream(0), "text", time.Minute).Err())
		require.NoError(t, check(), "the other shard is read")
		require.NoError(t, client.Set(t.Context(), domain.Stream(1), "text", time.Minute).Err())
		require.ErrorContains(t, check(), "no shard of "+domain.Prefix+" can be read: its keys are no streams")
		require.NoError(t, client.Del(t.Context(), domain.Stream(1)).Err())
		require.Error(t, c.check(t.Context()), "until the next look")
		require.NoError(t, check())
		require.Empty(t, log.String())
		require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: domain.Stream(3), Values: []string{"a", "b"}}).Err())
		require.NoError(t, check())
		require.Contains(t, log.String(), "stream="+domain.Stream(3)+" shards=2")
		require.NoError(t, server.Stop(context.Background()))
		require.NoError(t, check(), "plugins.redis has a check for it")
	})
}

// registered is a plugin with one check.
type registered struct{ check func(context.Context) error }

func (registered) Name() string { return "registered" }

func (p registered) Register(r *pipeline.Registry) error {
	r.Health("shards", p.check)
	return nil
}

// A shard with a problem does not stop its domain, and /readyz?verbose names it.
func TestReadinessNamesShardsWithProblems(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		own := redis.DefaultClientConfig()
		own.Addrs = []string{s.Addr}
		server := redis.New().Server(&own)
		require.NoError(t, server.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
		client := s.Client(t)
		domain := redis.DomainConfig{Prefix: redistest.Prefix(t, client) + ":events", Shards: 5, MaxLen: 2}
		add := func(shard int, id string) {
			require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: domain.Stream(shard), ID: id, Values: []string{"a", "b"}}).Err())
		}
		add(0, "*")
		add(1, "18446744073709551615-18446744073709551615")
		add(2, "*")
		add(2, "*")
		require.NoError(t, client.Set(t.Context(), domain.Stream(3), "text", time.Minute).Err())
		add(6, "*")

		ops := telemetry.New()
		settings, _ := ops.Settings().(*telemetry.Config)
		settings.Listen = "127.0.0.1:0"
		check := newShardCheck(server, []redis.DomainConfig{domain}, slog.New(slog.DiscardHandler)).check
		registry, err := pipeline.NewRegistry(pipeline.Env{}, ops, registered{check})
		require.NoError(t, err)
		running := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{})
		require.NoError(t, running.StartServices(t.Context()))
		t.Cleanup(func() { require.NoError(t, running.Stop(context.Background())) })
		browser := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		var answer telemetry.Readiness
		require.Eventually(t, func() bool {
			resp, err := browser.Get("http://" + ops.Addr() + "/readyz?verbose")
			if err != nil {
				return false
			}
			defer func() { _ = resp.Body.Close() }()
			return json.NewDecoder(resp.Body).Decode(&answer) == nil && answer.Ready
		}, 2*time.Minute, 10*time.Millisecond, "one shard can be read")
		require.Equal(t, map[string]any{
			domain.Stream(1): "the last possible id is used, so every further entry is refused (last id 18446744073709551615-18446744073709551615)",
			domain.Stream(2): "it is full: 2 entries, and max_len is 2",
			domain.Stream(3): "the key is no stream",
			domain.Stream(6): "no router reads it",
		}, answer.Checks["shards"].Details["shards"])
	})
}
