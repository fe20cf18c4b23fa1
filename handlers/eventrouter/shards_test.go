package eventrouter

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
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
