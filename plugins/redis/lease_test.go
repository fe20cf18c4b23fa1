package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// An effect that takes OwnedFor ends before another instance can have the shard.
func TestOwnedEndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lease{renewed: momentOf(time.Now())}
		first := pipeline.WithDelivery(context.WithValue(t.Context(), leaseKey{}, l), pipeline.Delivery{Delivered: 1})
		time.Sleep(leaseTime - OwnedFor - time.Millisecond)
		require.True(t, Owned(first))
		require.False(t, Owned(pipeline.WithDelivery(first, pipeline.Delivery{Delivered: 2})))
		time.Sleep(time.Millisecond)
		require.False(t, Owned(first))
		require.True(t, l.held())
		time.Sleep(OwnedFor)
		require.False(t, l.held())
	})
}

// The machine has slept, and its monotonic clock stood still meanwhile. Or the other clock was set
// back. The lease is over by the clock that says so.
func TestALeaseEndsByEitherClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now, past := momentOf(time.Now()), momentOf(time.Now().Add(-leaseTime))
		require.True(t, (&lease{renewed: now}).held())
		require.False(t, (&lease{renewed: moment{now.monotonic, past.wall}}).held(), "the machine has slept")
		require.False(t, (&lease{renewed: moment{past.monotonic, now.wall}}).held(), "the clock was set back")
	})
}

// An outage with many shards is a line per minute, although each shard calls twice per second.
func TestAnOutageOfLeasesIsALinePerMinute(t *testing.T) {
	t.Parallel()
	away := goredis.NewClient(&goredis.Options{MaxRetries: -1, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("away") }})
	t.Cleanup(func() { require.NoError(t, away.Close()) })
	log := &redistest.Lines{}
	s := &exclusiveSubscription{
		c: away, log: slog.New(slog.NewTextHandler(log, nil)), sampler: logs.NewThrottle(warnEvery), script: goredis.NewScript(shardSource),
	}
	for range 5 {
		for n := range 8 {
			(&exclusiveShard{exclusiveSubscription: s, options: poll.Options{Stream: fmt.Sprint("scan:events:", n)}}).round(t.Context())
		}
	}
	require.Equal(t, 1, log.Count("lease of a shard not renewed, trying again"), log)
}
