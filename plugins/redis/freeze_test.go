package redis

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// An instance is frozen for longer than its lease, and another one has the shard when it goes on.
// It starts nothing of what it had read, and is not the owner of what it handles.
func TestAFrozenOwnerStartsNothing(t *testing.T) {
	s := redistest.Mini(t)
	now := time.Now()
	s.Mini.SetTime(now) // the lease of the other instance does not end
	c := s.Client(t)
	p, name, _ := trims(t, c, func(cfg *Config) { cfg.Trim = false })
	d := DomainConfig{Prefix: name, Shards: 1, Group: "own", Exclusive: true}
	p.cfg.Domains = []DomainConfig{d}
	for n := range 20 {
		require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: d.Stream(0), Values: []any{"message", strconv.Itoa(n), "uuid", "u"}}).Err())
	}
	sub, err := p.Domain(name).Source().Open(t.Context(), pipeline.Flow{Window: 2, LongestHold: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	out, err := sub.Subscribe(context.Background(), "")
	require.NoError(t, err)
	inFlight := []*message.Message{redistest.Receive(t, out), redistest.Receive(t, out)}
	shard := sub.(*exclusiveSubscription).shards[0]
	var l *lease
	redistest.Eventually(t, "more is read", func() bool {
		shard.mu.Lock()
		defer shard.mu.Unlock()
		l = shard.lease
		return shard.reader.Stats().Buffered > 0
	})
	for _, m := range inFlight {
		require.True(t, Owned(m.Context()))
	}

	until := strconv.FormatInt(now.Add(leaseTime).UnixMilli(), 10)
	require.NoError(t, c.HSet(t.Context(), MetaKey(d.Stream(0)), "owner", "another", "until", until, "epoch", 2, "take:another", until+" 1").Err())
	l.set(time.Now().Add(-leaseTime), false)
	for _, m := range inFlight {
		require.False(t, Owned(m.Context()))
		m.Ack()
	}
	redistest.Eventually(t, "the shard is lost", func() bool {
		select {
		case m := <-out:
			require.FailNow(t, "started without the lease", string(m.Payload))
		default:
		}
		shard.mu.Lock()
		defer shard.mu.Unlock()
		return shard.reader == nil
	})
}
