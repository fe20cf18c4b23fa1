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
	return ownsShards(t, c, 1, closeTimeout, 10*time.Second)
}

// ownsShards is the same with more shards, of which only the first has entries.
func ownsShards(t *testing.T, c goredis.UniversalClient, shards int, closeTimeout, hold time.Duration) (d DomainConfig, first *exclusiveShard, out <-chan *message.Message) {
	t.Helper()
	p, name, _ := trims(t, c, func(cfg *Config) { cfg.Trim, cfg.CloseTimeout = false, closeTimeout })
	d = DomainConfig{Prefix: name, Shards: shards, Group: "own", Exclusive: true}
	p.cfg.Domains = []DomainConfig{d}
	for n := range 20 {
		require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: d.Stream(0), Values: []any{"message", strconv.Itoa(n), "uuid", "u"}}).Err())
	}
	sub, err := p.Domain(name).Source().Open(t.Context(), pipeline.Flow{Window: 2, LongestHold: hold})
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

// The same of a shard that is released because another instance has less than its share: the lease is not renewed
// either, so that the other one has the shard when it has expired. A stop meanwhile does not free it.
func TestALeaseOfASurplusShardOutlivesAnAbandonedHandler(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		for _, abandoned := range []bool{true, false} {
			hold := time.Minute
			if abandoned {
				hold = 50 * time.Millisecond
			}
			d, shard, out := ownsShards(t, c, 2, time.Minute, hold)
			first, meta := redistest.Receive(t, out), MetaKey(d.Stream(0))
			if !abandoned {
				first.Ack()
				go func() {
					for m := range out {
						m.Ack()
					}
				}()
			}
			redistest.Eventually(t, "the shard is released", func() bool {
				now, err := c.Time(t.Context()).Result()
				require.NoError(t, err)
				require.NoError(t, c.HSet(t.Context(), meta, "take:another", strconv.FormatInt(now.Add(leaseTime/2).UnixMilli(), 10)+" 0").Err())
				shard.mu.Lock()
				defer shard.mu.Unlock()
				return shard.reader == nil && shard.owned == 1
			})
			lease := func() []any { return c.HMGet(t.Context(), meta, "owner", "until").Val() }
			if !abandoned {
				redistest.Eventually(t, "it is free", func() bool { return lease()[0] == nil })
				require.NoError(t, shard.Close())
				continue
			}
			kept := lease()
			require.Equal(t, shard.token, kept[0])
			until, err := strconv.ParseInt(kept[1].(string), 10, 64)
			require.NoError(t, err)
			redistest.Eventually(t, "it expires", func() bool {
				require.Equal(t, kept, lease())
				return c.Time(t.Context()).Val().UnixMilli() > until
			})
			require.NoError(t, shard.Close())
			require.Equal(t, kept, lease())
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
