package cli

import (
	"context"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// The list names the shards that take no entries, and those that no router reads.
func TestShardsWithAProblem(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		own := redis.DefaultClientConfig()
		own.Addrs = []string{s.Addr}
		server := redis.New().Server(&own)
		require.NoError(t, server.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
		client := s.Client(t)
		domain := redis.DomainConfig{Prefix: redistest.Prefix(t, client) + ":events", Shards: 5, Group: "eventrouter"}
		add := func(shard int, id string) {
			require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: domain.Stream(shard), ID: id, Values: []string{"a", "b"}}).Err())
		}
		add(0, "*")
		add(1, fmt.Sprintf("%d-0", time.Now().UnixMicro()))
		add(2, "18446744073709551615-18446744073709551614")
		add(2, "*")
		require.NoError(t, client.Set(t.Context(), domain.Stream(3), "text", time.Minute).Err())
		add(7, "*")

		list, err := Jobs{Settings: Settings{Domains: []redis.DomainConfig{domain}}, OfShards: server}.Shards(t.Context())
		require.NoError(t, err)
		problems := map[int]string{}
		for _, one := range list {
			problems[one.Shard] = one.Problem
		}
		require.Len(t, problems, 6)
		require.Empty(t, problems[0]+problems[4])
		require.Contains(t, problems[1], "ahead of the server's clock")
		require.Contains(t, problems[2], "the last possible id is used")
		require.Contains(t, problems[3], "the key is no stream")
		require.Contains(t, problems[7], "no router reads it: plugins.redis.domains has 5 shards")
		a := shards{list}.answer()
		require.Len(t, a.Tables[0].Rows, len(problems))
		require.Len(t, a.Notes, 4)
		for _, note := range a.Notes {
			require.Contains(t, note, domain.Prefix+":")
		}
	})
}
