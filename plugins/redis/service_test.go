package redis

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Each instance removes left-overs, whatever it reads itself.
func TestTheServiceRemovesLeftOvers(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream, subscriptions := redistest.Stream(t, c), "millrace:subscriptions"
		require.NoError(t, c.XGroupCreateMkStream(t.Context(), stream, "g", "0").Err())
		require.NoError(t, c.XGroupCreate(t.Context(), stream, "own-killed-0", "0").Err())
		mark := strings.Join([]string{"own", stream, "own-killed-0", "killed-0"}, "\t")
		require.NoError(t, c.HSet(t.Context(), subscriptions, mark, 1, "looked", time.Now().Add(-time.Minute).UnixMilli(), "looking", 1).Err())
		t.Cleanup(func() { c.HDel(context.Background(), subscriptions, mark) })
		p := New()
		p.cfg.Addrs = []string{c.(*goredis.Client).Options().Addr}
		p.env = pipeline.Env{Instance: "test-" + watermill.NewULID(), Logger: slog.New(slog.DiscardHandler)}
		t.Cleanup(func() { c.HDel(context.Background(), instancesKey, p.env.Instance) })
		require.NoError(t, service{p}.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, service{p}.Stop(context.Background())) })
		redistest.Eventually(t, "the mark is removed", func() bool { return !c.HExists(t.Context(), subscriptions, mark).Val() })
		groups, err := c.XInfoGroups(t.Context(), stream).Result()
		require.NoError(t, err)
		require.Len(t, groups, 1)
		require.Equal(t, "g", groups[0].Name)
	})
}
