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

// An entry whose id is ahead of the clock is as old as the first visit that saw it.
func TestRetentionOfIdsAheadOfTheClock(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		ctx, stream := t.Context(), s.prefix+":results"
		t.Cleanup(func() {
			require.NoError(t, s.client.Del(context.WithoutCancel(ctx), stream).Err())
			require.NoError(t, s.client.Del(context.WithoutCancel(ctx), MetaKey(stream)).Err())
		})
		r := Retainer{Stream: stream, Retention: time.Hour}
		trim := func() (left int64) {
			_, left, err := r.Trim(ctx, s.client)
			require.NoError(t, err)
			return left
		}
		hourLater := func() {
			var id string
			var at int64
			_, err := fmt.Sscan(s.client.HGet(ctx, MetaKey(stream), "ahead").Val(), &id, &at)
			require.NoError(t, err)
			require.NoError(t, s.client.HSet(ctx, MetaKey(stream), "ahead", fmt.Sprint(id, " ", at-time.Hour.Milliseconds())).Err())
		}
		add := func(id string, n int) {
			for range n {
				require.NoError(t, s.client.XAdd(ctx, &redis.XAddArgs{Stream: stream, ID: id, Values: []any{"payload", "x"}}).Err())
			}
		}
		add(fmt.Sprint(s.client.Time(ctx).Val().UnixMicro(), "-0"), 1)
		add("*", 249)
		require.EqualValues(t, 250, trim())
		add("*", 30)
		require.EqualValues(t, 280, trim(), "an hour from the first visit on")
		hourLater()
		require.EqualValues(t, 30, trim())
		require.EqualValues(t, 30, trim())
		hourLater()
		require.Zero(t, trim())
		require.Zero(t, trim(), "no stream")
	})
}
