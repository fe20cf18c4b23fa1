package redis

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// ownsShard is an instance that has the lease of an exclusive shard with twenty entries, and handles
// two at a time.
func ownsShard(t *testing.T, c goredis.UniversalClient, closeTimeout time.Duration) (d DomainConfig, shard *exclusiveShard, out <-chan *message.Message) {
	t.Helper()
	p, name, _ := trims(t, c, func(cfg *Config) { cfg.Trim, cfg.CloseTimeout = false, closeTimeout })
	d = DomainConfig{Prefix: name, Shards: 1, Group: "own", Exclusive: true}
	p.cfg.Domains = []DomainConfig{d}
	for n := range 20 {
		require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: d.Stream(0), Values: []any{"message", strconv.Itoa(n), "uuid", "u"}}).Err())
	}
	sub, err := p.Domain(name).Source().Open(t.Context(), pipeline.Flow{Window: 2, LongestHold: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	out, err = sub.Subscribe(context.Background(), "")
	require.NoError(t, err)
	return d, sub.(*exclusiveSubscription).shards[0], out
}

// A handler is still running when its instance gives up to wait for it. The instance keeps the lease
// until it expires, so that no other one starts meanwhile. Without such a handler it is free at once.
func TestALeaseOutlivesAnAbandonedHandler(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		for _, abandoned := range []bool{true, false} {
			patience := time.Minute // a busy machine ends the handler late
			if abandoned {
				patience = 50 * time.Millisecond
			}
			d, shard, out := ownsShard(t, c, patience)
			first := redistest.Receive(t, out)
			owner := func() string { return c.HGet(t.Context(), MetaKey(d.Stream(0)), "owner").Val() }
			require.Equal(t, shard.token, owner())
			if !abandoned {
				first.Ack()
				go func() {
					for m := range out {
						m.Ack()
					}
				}()
			}
			require.NoError(t, shard.Close())
			require.Equal(t, abandoned, owner() == shard.token, "abandoned: %v, owner: %q", abandoned, owner())
		}
	})
}

// The meta has this instance as the owner, with an epoch that it does not know: the shard was read by
// another one meanwhile. It drops what it has read, and begins again with an epoch of its own.
func TestALeaseOfAnotherEpochIsLost(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		d, shard, out := ownsShard(t, c, 50*time.Millisecond)
		first := redistest.Receive(t, out)
		// A machine that stands still does not renew the lease in time, until it goes on.
		redistest.Eventually(t, "it is owned", func() bool { return Owned(first.Context()) })
		require.NoError(t, c.HSet(t.Context(), MetaKey(d.Stream(0)), "epoch", 7).Err())
		redistest.Eventually(t, "it is lost", func() bool { return !Owned(first.Context()) })
		first.Ack()
		go func() {
			for m := range out {
				m.Ack()
			}
		}()
		redistest.Eventually(t, "it is taken with another epoch", func() bool {
			shard.mu.Lock()
			defer shard.mu.Unlock()
			return shard.lease != nil && shard.lease.epoch == 8
		})
		require.InDelta(t, 1, testutil.ToFloat64(shard.p.shards.losses.WithLabelValues(shard.domain)), 0)
	})
}

// An instance is frozen for longer than its lease, and another one has the shard when it goes on.
// It starts nothing of what it had read, and is not the owner of what it handles.
func TestAFrozenOwnerStartsNothing(t *testing.T) {
	s := redistest.Mini(t)
	now := time.Now()
	s.Mini.SetTime(now) // the lease of the other instance does not end
	c := s.Client(t)
	d, shard, out := ownsShard(t, c, 50*time.Millisecond)
	inFlight := []*message.Message{redistest.Receive(t, out), redistest.Receive(t, out)}
	var l *lease
	redistest.Eventually(t, "more is read", func() bool {
		shard.mu.Lock()
		defer shard.mu.Unlock()
		l = shard.lease
		return shard.reader.Stats().Buffered > 0
	})
	l.set(time.Now(), false) // the machine may have stood still since the last renewal
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
