package poll

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A round continues behind the last claim of the round before, and then claims the first entries.
// Entries that fail again and again do not keep the others pending.
func TestARoundOfTheClaimerGoesOnWhereTheLastOneEnded(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		require.NoError(t, c.XGroupCreateMkStream(t.Context(), stream, "g", "0").Err())
		for range 5 {
			require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"message", "x"}}).Err())
		}
		read, err := c.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: "g", Consumer: "slow", Streams: []string{stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		var ids []string
		for _, e := range read[0].Messages {
			ids = append(ids, e.ID)
		}
		_, err = Consumer{c, stream, "g", "slow"}.Release(t.Context(), time.Hour, ids...)
		require.NoError(t, err)

		next := ""
		var claimed []string
		// Each reader releases its entries at its end.
		for _, me := range []string{"a", "b", "c", "d"} {
			r := NewReader(c, Options{
				Config: Config{Concurrency: 1, BatchSize: 1, MinIdle: time.Hour},
				Stream: stream, Group: "g", Consumer: me,
			}, make(chan *message.Message), nil, nil)
			r.Start()
			r.claimer.next = next
			require.NoError(t, r.claimer.round())
			next = r.claimer.next
			for _, id := range ids {
				if r.Holds(id) {
					claimed = append(claimed, id)
				}
			}
			require.NoError(t, r.Drain(context.Background()))
		}
		require.Equal(t, append(ids, ids[:2]...), claimed, "each in its turn, then the first ones again")
	})
}
