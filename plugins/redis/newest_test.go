package redis_test

import (
	"context"
	"fmt"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Pages of several streams have each entry once, the newest first, also where ids are equal.
func TestTheNewestEntriesOfSeveralStreams(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		client := s.Client(t)
		prefix := redistest.Prefix(t, client)
		streams := map[string]string{}
		for name, ids := range map[string][]string{"a": {"1-1", "5-0", "5-2", "900-0"}, "b": {"5-0", "5-2", "77-10", "77-9", "1000-0"}, "c": {"5-2"}, "none": nil} {
			streams[name] = prefix + ":" + name
			for _, id := range []string{"1-1", "5-0", "5-2", "77-9", "77-10", "900-0", "1000-0"} {
				for _, own := range ids {
					if own == id {
						require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: streams[name], ID: id, Values: []any{"who", "ann", "why", id}}).Err())
					}
				}
			}
		}
		own := redis.DefaultClientConfig()
		own.Addrs = []string{s.Addr}
		server := redis.New().Server(&own)
		require.NoError(t, server.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
		for _, n := range []int{1, 2, 3, 100} {
			var got []string
			for before := ""; ; {
				entries, err := server.Newest(t.Context(), streams, before, n)
				require.NoError(t, err)
				for _, e := range entries {
					require.Equal(t, map[string]string{"who": "ann", "why": e.ID}, e.Fields)
					got, before = append(got, e.Place()), e.Place()
				}
				if len(entries) < n {
					break
				}
			}
			require.Equal(t, []string{"1000-0/b", "900-0/a", "77-10/b", "77-9/b", "5-2/c", "5-2/b", "5-2/a", "5-0/b", "5-0/a", "1-1/a"}, got, fmt.Sprint("pages of ", n))
		}
		entries, err := server.Newest(t.Context(), map[string]string{"b": streams["b"]}, "", 1)
		require.NoError(t, err)
		require.Equal(t, int64(1000), entries[0].At().UnixMilli())
		_, err = server.Newest(t.Context(), streams, "+ COUNT 1", 1)
		require.ErrorContains(t, err, "before must be the id of a change")
	})
}
