package redispoll

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A round goes on behind what the last one claimed, and then takes the first ones: entries that fail again and again do not keep
// the others pending.
func TestARoundOfTheClaimerGoesOnWhereTheLastOneEnded(t *testing.T) {
	onPresenceServers(t, func(t *testing.T, c redis.UniversalClient) {
		l := newLeftovers(t, c, "unused")
		for range 5 {
			require.NoError(t, c.XAdd(t.Context(), &redis.XAddArgs{Stream: l.stream, Values: []any{"message", "x"}}).Err())
		}
		read, err := c.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: "g", Consumer: "slow", Streams: []string{l.stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		var ids []string
		for _, e := range read[0].Messages {
			ids = append(ids, e.ID)
		}
		_, err = GiveBack(t.Context(), c, l.stream, "g", "slow", time.Hour, ids...)
		require.NoError(t, err)

		k := &claimer{}
		var claimed []string
		for _, me := range []string{"a", "b", "c", "d"} { // one that reads its own entries first would get them back
			k.r = NewReader(c, ReaderConfig{Stream: l.stream, Group: "g", Consumer: me, Slots: 1, Batch: 1, MinIdle: time.Hour},
				make(chan *message.Message), Hooks{}, nil, nil)
			k.r.Start()
			require.NoError(t, k.round())
			for _, id := range ids {
				if k.r.Holds(id) {
					claimed = append(claimed, id)
				}
			}
			require.NoError(t, k.r.Drain(context.Background())) // returns them, so they are idle again
		}
		require.Equal(t, append(ids, ids[:2]...), claimed, "each in its turn, then the first ones again")
	})
}
