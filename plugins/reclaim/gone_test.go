package reclaim

import (
	"context"
	"slices"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Consumers of a subscriber, of a StatefulSet, of the bridge: their names look like an instance's,
// and no presence says that they live. They are not dead, and keep their entries and their names
// until min_idle.
func TestOnlyWhatWasThereCanBeGone(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle, c.PresenceTimeout = time.Hour, time.Millisecond
		reader := &fakeReader{free: 100}
		st := s.stream(t, "1", "me-1-0", reader)
		killed := s.prefix + "-killed"
		t.Cleanup(func() { s.client.HDel(context.Background(), "millrace:instances", killed) })
		require.NoError(t, s.client.HSet(t.Context(), "millrace:instances", killed, time.Now().UnixMilli()).Err())
		for _, consumer := range []string{"event-router-0", "host-7-bridge-0", killed + "-0"} {
			s.hold(t, st, consumer, 1)
		}
		sub, err := pubsub.NewSubscriber(s.client, pubsub.SubscriberConfig{Group: st.Group, Config: poll.Config{MinIdle: time.Hour}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		msgs, err := sub.Subscribe(t.Context(), st.Name)
		require.NoError(t, err)
		require.NoError(t, s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: st.Name, Values: []any{"message", "in flight"}}).Err())
		msg := <-msgs
		defer msg.Ack()
		before := s.consumers(t, st)
		require.Len(t, before, 4)

		r := newRig(c, "me-1", present(), &fakeTarget{client: s.client, streams: []Stream{st}})
		r.opts.Alive = func(ctx context.Context, instances ...string) (map[string]bool, error) {
			return redis.Alive(ctx, s.client, instances...)
		}
		r.run(t)
		redistest.Eventually(t, "the one that had a presence is gone, with its consumer", func() bool {
			return len(reader.got()) == 1 && !slices.Contains(s.consumers(t, st), killed+"-0")
		})
		require.Subset(t, append(s.consumers(t, st), killed+"-0"), before)
		n, err := s.client.XPending(t.Context(), st.Name, st.Group).Result()
		require.NoError(t, err)
		require.Equal(t, int64(1), n.Consumers["event-router-0"])
		require.Equal(t, int64(1), n.Consumers["host-7-bridge-0"])
	})
}

// An entry that was renewed within presence_timeout is not claimed, even without a presence.
func TestARecentlyRenewedEntryIsNotClaimed(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle, c.PresenceTimeout = time.Hour, time.Hour
		reader := &fakeReader{free: 100}
		st := s.stream(t, "1", "me-1-0", reader)
		ids := s.hold(t, st, "other-2-0", 2)
		s.release(t, st, "other-2-0", 2*time.Hour, ids[:1]) // reading has renewed the other one
		d := newDomain(newRig(c, "me-1", present()).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		d.gone["other-2"] = time.Now().Add(-2 * time.Hour)
		d.round(t.Context(), false)
		require.Equal(t, ids[:1], reader.got())
		require.Contains(t, s.consumers(t, st), "other-2-0")
	})
}

// An instance has departed. The next check claims the entries that it has returned: they count as
// idle for min_idle. Its other entries wait for presence_timeout. When it is back, only min_idle
// counts.
func TestWhatADepartedInstanceReturnedIsClaimedByTheNextCheck(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle, c.PresenceTimeout = time.Hour, time.Hour
		reader := &fakeReader{free: 100}
		st := s.stream(t, "1", "me-1-0", reader)
		returned := s.hold(t, st, "other-2-0", 12)
		s.hold(t, st, "other-2-0", 1) // its handler may still be at work
		foreign := s.hold(t, st, "router-0", 1)
		s.release(t, st, "other-2-0", c.MinIdle, returned)
		s.release(t, st, "router-0", c.MinIdle, foreign)
		p := present("other-2")
		p.unknown = []string{"router"}
		d := newDomain(newRig(c, "me-1", p).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		d.round(t.Context(), false)
		require.Empty(t, reader.got(), "it is alive, and the round is not for idle entries")
		p.set("other-2", false)
		d.round(t.Context(), false)
		require.Equal(t, returned, reader.got())
		require.Contains(t, s.consumers(t, st), "other-2-0")

		p.set("other-2", true)
		s.release(t, st, "other-2-0", c.MinIdle, s.hold(t, st, "other-2-0", 1))
		d.round(t.Context(), false)
		require.Equal(t, returned, reader.got())
	})
}
