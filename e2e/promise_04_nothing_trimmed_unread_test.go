package e2e

import (
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// A campaign is twenty times as large as its stream may be, and another group reads the same stream
// slowly. Both groups get every entry, although the stream is trimmed all the time.
func TestNothingIsTrimmedUnread(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, servers.Redis, simulator.Faults{Latency: 5 * time.Millisecond})
	const n, maxLen, group = 2_000, 100, "auditor"
	w.set("plugins.promotion.stream.max_len", maxLen).set("plugins.promotion.stream.idle_timeout", "10m")
	w.set("plugins.promotion.stream.required_groups", []string{group})
	w.start()
	w.start()
	w.publish("POINT", maxLen/2) // so that the stream is there, and not yet full
	stream, ctx := w.stream("POINT"), t.Context()
	require.Eventually(t, func() bool { return w.redis.XGroupCreate(ctx, stream, group, "0").Err() == nil },
		2*time.Minute, 10*time.Millisecond, "the stream is there")
	watch := startWatch(ctx, w.redis, stream, "campaign-promotion-group:POINT:"+strconv.FormatInt(w.promotion, 10))
	w.publish("POINT", n)

	seen := map[int64]bool{}
	for deadline := time.Now().Add(2 * time.Minute); len(seen) < n; {
		require.True(t, time.Now().Before(deadline), "the other group has got %d of %d targets", len(seen), n)
		read, err := w.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: group, Consumer: "one", Streams: []string{stream, ">"}, Count: 20, Block: -1,
		}).Result()
		if errors.Is(err, redis.Nil) {
			pause(t, 5*time.Millisecond)
			continue
		}
		require.NoError(t, err)
		for _, m := range read[0].Messages {
			var message struct{ TargetID int64 }
			require.NoError(t, json.Unmarshal([]byte(m.Values["message"].(string)), &message))
			seen[message.TargetID] = true
			require.NoError(t, w.redis.XAck(ctx, stream, group, m.ID).Err())
		}
	}
	w.awaitSettled("POINT", n, time.Minute)
	w.assertBalanced("POINT", n)
	require.NoError(t, watch.result())
	length, err := w.redis.XLen(ctx, stream).Result()
	require.NoError(t, err)
	require.Less(t, length, int64(n/2), "the stream was trimmed")
}
