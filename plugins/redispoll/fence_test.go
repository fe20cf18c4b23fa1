package redispoll_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// An instance was cut off or frozen: what it had read before, and another has claimed meanwhile, is not begun. What is still
// its own is.
func TestNothingFromBeforeTheFenceIsBegun(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		c := s.client(t)
		stream := s.stream(t, c)
		ctx := t.Context()
		require.NoError(t, c.XGroupCreateMkStream(ctx, stream, "g", "0").Err())
		var ids []string
		for i := range 5 {
			id, err := c.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []any{"message", strconv.Itoa(i)}}).Result()
			require.NoError(t, err)
			ids = append(ids, id)
		}
		var fence atomic.Int64
		out := make(chan *message.Message)
		r := redispoll.NewReader(c, redispoll.ReaderConfig{
			Stream: stream, Group: "g", Consumer: "me-0", Slots: 1, Batch: 5, MinIdle: time.Hour,
			Fence: func() time.Time { return time.Unix(0, fence.Load()) },
		}, out, redispoll.Hooks{}, logger(t), nil)
		r.Start()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			require.NoError(t, r.Drain(ctx))
		})
		first := <-out
		require.Equal(t, "0", string(first.Payload))
		require.Eventually(t, func() bool { return r.Stats().Read == 5 }, 15*time.Second, time.Millisecond, "the others wait here")
		require.NoError(t, c.XClaim(ctx, &redis.XClaimArgs{Stream: stream, Group: "g", Consumer: "other-0", Messages: ids[1:4]}).Err())
		fence.Store(time.Now().UnixNano())
		first.Ack()
		last := <-out
		require.Equal(t, "4", string(last.Payload), "1 to 3 are another's")
		last.Ack()
		require.Eventually(t, func() bool {
			p, err := c.XPending(ctx, stream, "g").Result()
			return err == nil && p.Consumers["other-0"] == 3 && p.Consumers["me-0"] == 0
		}, 15*time.Second, time.Millisecond)
	})
}

// An acknowledgement of what was confirmed before the fence does not acknowledge what another has claimed meanwhile.
func TestAnOldAcknowledgementIsFenced(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		c := s.client(t)
		stream := s.stream(t, c)
		ctx := t.Context()
		require.NoError(t, c.XGroupCreateMkStream(ctx, stream, "g", "0").Err())
		id, err := c.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []any{"message", "x"}}).Result()
		require.NoError(t, err)
		var fence atomic.Int64
		out := make(chan *message.Message)
		r := redispoll.NewReader(c, redispoll.ReaderConfig{
			Stream: stream, Group: "g", Consumer: "me-0", Slots: 1, MinIdle: time.Hour,
			Fence: func() time.Time { return time.Unix(0, fence.Load()) },
		}, out, redispoll.Hooks{}, logger(t), nil)
		r.Start()
		msg := <-out
		require.NoError(t, c.XClaim(ctx, &redis.XClaimArgs{Stream: stream, Group: "g", Consumer: "other-0", Messages: []string{id}}).Err())
		fence.Store(time.Now().UnixNano())
		msg.Ack()
		end, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		require.NoError(t, r.Drain(end))
		p, err := c.XPending(ctx, stream, "g").Result()
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"other-0": 1}, p.Consumers, "it is another's to acknowledge")
	})
}

// A redelivery is a beginning too: what was nacked before the fence is looked up again. While the fence lies ahead nothing is
// begun or read.
func TestARedeliveryAsksTheFence(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		c := s.client(t)
		stream := s.stream(t, c)
		ctx := t.Context()
		require.NoError(t, c.XGroupCreateMkStream(ctx, stream, "g", "0").Err())
		add := func(payload string) string {
			id, err := c.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []any{"message", payload}}).Result()
			require.NoError(t, err)
			return id
		}
		first := add("0")
		add("1")
		var fence, asked atomic.Int64
		out := make(chan *message.Message)
		r := redispoll.NewReader(c, redispoll.ReaderConfig{
			Stream: stream, Group: "g", Consumer: "me-0", Slots: 1, Batch: 5, MinIdle: time.Hour, PollInterval: 10 * time.Millisecond,
			MaxRedeliveries: 5, Redelivery: pipeline.Backoff{First: 50 * time.Millisecond, Max: 50 * time.Millisecond},
			Fence: func() time.Time { asked.Add(1); return time.Unix(0, fence.Load()) },
		}, out, redispoll.Hooks{}, logger(t), nil)
		r.Start()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			require.NoError(t, r.Drain(ctx))
		})
		msg := <-out
		require.Equal(t, "0", string(msg.Payload))
		require.NoError(t, c.XClaim(ctx, &redis.XClaimArgs{Stream: stream, Group: "g", Consumer: "other-0", Messages: []string{first}}).Err())
		fence.Store(time.Now().UnixNano())
		msg.Nack()
		msg = <-out
		require.Equal(t, "1", string(msg.Payload), "the first is another's")

		fence.Store(time.Now().Add(time.Hour).UnixNano())
		add("2")
		msg.Ack()
		seen := asked.Load()
		require.Eventually(t, func() bool { return asked.Load() > seen+5 }, 15*time.Second, time.Millisecond)
		select {
		case msg := <-out:
			require.FailNow(t, "begun behind the fence", string(msg.Payload))
		default:
		}
		fence.Store(time.Now().UnixNano())
		msg = <-out
		require.Equal(t, "2", string(msg.Payload))
		msg.Ack()
	})
}
