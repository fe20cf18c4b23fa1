package streams

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestRetention(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		ctx := t.Context()
		stream := s.prefix + ":results"
		r := Retainer{Stream: stream, Retention: time.Hour}
		trim := func(r Retainer) (removed, left int64) {
			removed, left, err := r.Trim(ctx, s.client)
			require.NoError(t, err)
			return removed, left
		}
		removed, left := trim(r)
		require.Zero(t, removed+left, "there is no stream yet")

		now := s.client.Time(ctx).Val()
		add := func(ago time.Duration, n int) {
			for i := range n {
				require.NoError(t, s.client.XAdd(ctx, &redis.XAddArgs{
					Stream: stream, ID: fmt.Sprintf("%d-%d", now.Add(-ago).UnixMilli(), i+1), Values: []any{"payload", "x"},
				}).Err())
			}
		}
		add(2*time.Hour, 300)
		add(30*time.Minute, 50)
		require.NoError(t, s.client.XGroupCreate(ctx, stream, "slow", "0").Err())
		removed, left = trim(r)
		require.GreaterOrEqual(t, removed, int64(200), "what is too old, in whole nodes")
		require.LessOrEqual(t, left, int64(150))
		require.GreaterOrEqual(t, left, int64(50), "what is not, though no group has read it, stays")

		require.NoError(t, s.client.XGroupCreate(ctx, stream, "books", "0").Err())
		handle := func(group string) {
			for ids := readSome(t, s, stream, group, "c", 100); ids != nil; ids = readSome(t, s, stream, group, "c", 100) {
				require.NoError(t, s.client.XAck(ctx, stream, group, ids...).Err())
			}
		}
		handle("books")
		r.RequiredGroups = []string{"books"}
		removed, _ = trim(r)
		require.Zero(t, removed, "another group has not read it")
		handle("slow")
		removed, _ = trim(Retainer{Stream: stream, Retention: time.Hour})
		require.Zero(t, removed, "without required groups only the age counts")
		removed, _ = trim(Retainer{Stream: stream, Retention: time.Hour, RequiredGroups: []string{"books", "later"}})
		require.Zero(t, removed, "one of them is yet to come")
		_, left = trim(r)
		require.Zero(t, left)
		require.NoError(t, s.client.Del(context.WithoutCancel(ctx), stream).Err())
	})
}
