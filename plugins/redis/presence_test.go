package redis

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// withTTL is a presence that lives quickly.
func withTTL(t *testing.T, c goredis.UniversalClient, instance string, ttl time.Duration) *presence {
	t.Helper()
	p := &presence{c: c, instance: instance, ttl: ttl, renew: ttl / 3, log: slog.New(slog.DiscardHandler), outage: logs.NewOutage(time.Minute, true), failed: make(chan error, 1)}
	t.Cleanup(func() { // a test may have taken the server away
		_ = p.release(context.Background())
		_ = c.HDel(context.Background(), instancesKey, instance).Err()
	})
	return p
}

func TestPresence(t *testing.T) {
	t.Parallel()
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		name := "test-" + watermill.NewULID()
		const ttl = 3 * time.Second
		alive := func() bool {
			a, err := Alive(t.Context(), c, name, "nobody-"+name)
			require.NoError(t, err)
			_, known := a["nobody-"+name]
			require.False(t, known, "it never had a presence")
			return a[name]
		}
		require.False(t, alive())
		a, err := Alive(t.Context(), c, name)
		require.NoError(t, err)
		require.Empty(t, a, "not yet")

		first := withTTL(t, c, name, time.Minute) // it lives while the machine stands still
		first.renew = time.Second
		renewed := func() time.Time {
			first.mu.Lock()
			defer first.mu.Unlock()
			return first.renewed
		}
		require.NoError(t, first.acquire(t.Context()))
		require.True(t, alive())

		begin := time.Now()
		err = withTTL(t, c, name, ttl).acquire(t.Context())
		require.ErrorIs(t, err, errDuplicate)
		require.ErrorContains(t, err, name)
		require.GreaterOrEqual(t, time.Since(begin), ttl, "a dead predecessor must have had its time to expire")
		require.True(t, alive())
		require.Eventually(t, func() bool { return renewed().After(begin) }, 2*time.Minute, 5*time.Millisecond, "renewed meanwhile")

		require.NoError(t, first.release(t.Context()))
		require.False(t, alive())
		a, err = Alive(t.Context(), c, name)
		require.NoError(t, err)
		require.Equal(t, map[string]bool{name: false}, a, "it was there, and is gone")
		require.NoError(t, first.release(t.Context()), "twice")
	})
}

// A process that has lost its name to another one does not say that the other one was stopped.
func TestAProcessWithoutItsNameSaysNothing(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		name := "test-" + watermill.NewULID()
		first, second := withTTL(t, c, name, time.Minute), withTTL(t, c, name, time.Minute)
		require.NoError(t, first.acquire(t.Context()))
		require.NoError(t, c.Del(t.Context(), presenceKey(name)).Err())
		require.NoError(t, second.acquire(t.Context()))
		mine, err := first.run(t.Context(), first.ttl)
		require.NoError(t, err)
		require.False(t, mine)
		require.NoError(t, first.release(t.Context()))
		require.Zero(t, c.Exists(t.Context(), stateKey(name)).Val())
		require.NoError(t, second.release(t.Context()))
		require.EqualValues(t, 1, c.Exists(t.Context(), stateKey(name)).Val())
	})
}

func TestPresenceAfterAKilledPredecessor(t *testing.T) {
	t.Parallel()
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		name := "test-" + watermill.NewULID()
		const ttl = 2 * time.Second
		begin := time.Now()
		require.NoError(t, c.Set(t.Context(), presenceKey(name), "the token of the dead", ttl).Err())
		// It waits longer than that key lasts, because a machine may stand still and the time of miniredis with it.
		require.NoError(t, withTTL(t, c, name, 15*time.Second).acquire(t.Context()))
		require.Greater(t, time.Since(begin), ttl/2, "it must have been waited for")
	})
}

func TestPresenceWaitIsBoundedByContext(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		name := "test-" + watermill.NewULID()
		require.NoError(t, withTTL(t, c, name, time.Minute).acquire(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, withTTL(t, c, name, time.Minute).acquire(ctx), context.DeadlineExceeded)
	})
}

// After a wipe the holder takes its name again. If another process was faster, the holder is
// notified.
func TestPresenceAfterAWipe(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		name := "test-" + watermill.NewULID()
		p := withTTL(t, c, name, 300*time.Millisecond)
		require.NoError(t, p.acquire(t.Context()))
		require.NoError(t, c.Del(t.Context(), presenceKey(name)).Err())
		require.Eventually(t, func() bool { a, err := Alive(t.Context(), c, name); return err == nil && a[name] }, 2*time.Minute, 5*time.Millisecond)

		require.NoError(t, c.Set(t.Context(), presenceKey(name), "somebody else", time.Minute).Err())
		t.Cleanup(func() { c.Del(context.Background(), presenceKey(name)) })
		select {
		case err := <-p.failed:
			require.ErrorIs(t, err, errDuplicate)
		case <-time.After(2 * time.Minute):
			require.FailNow(t, "the loss of the name was not noticed")
		}
		require.NoError(t, p.release(t.Context()))
		holder, err := c.Get(t.Context(), presenceKey(name)).Result()
		require.NoError(t, err)
		require.Equal(t, "somebody else", holder, "another one's presence was deleted")
	})
}

func TestAliveOfNobody(t *testing.T) {
	t.Parallel()
	a, err := Alive(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, a)
}

// An instance of a version that writes a presence and no mark is marked by the first question about
// it, while it lives.
func TestAPresenceWithoutAMarkIsMarked(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		name := "test-" + watermill.NewULID()
		t.Cleanup(func() { c.HDel(context.Background(), instancesKey, name) })
		ask := func() map[string]bool {
			a, err := Alive(t.Context(), c, name)
			require.NoError(t, err)
			return a
		}
		require.Empty(t, ask())
		require.NoError(t, c.Set(t.Context(), presenceKey(name), "a token", time.Hour).Err())
		require.Equal(t, map[string]bool{name: true}, ask())
		marked := c.HGet(t.Context(), instancesKey, name).Val()
		require.NotEmpty(t, marked)
		require.Equal(t, map[string]bool{name: true}, ask())
		require.NoError(t, c.Del(t.Context(), presenceKey(name)).Err())
		require.Equal(t, map[string]bool{name: false}, ask(), "killed")
	})
}

// The marks of instances that have ended are limited in age and number.
func TestOldInstancesAreRemoved(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	c := goredis.NewClient(&goredis.Options{Addr: m.Addr()})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	now := time.Now()
	m.SetTime(now)
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	require.NoError(t, c.HSet(t.Context(), instancesKey, "old", ago(markKept+time.Minute), "recent", ago(markKept-time.Minute), "odd", "x").Err())
	require.NoError(t, markInstance(t.Context(), c, "me", false))
	require.Len(t, c.HGetAll(t.Context(), instancesKey).Val(), 4, "only a start removes")
	require.NoError(t, markInstance(t.Context(), c, "me", true))
	require.ElementsMatch(t, []string{"recent", "me"}, c.HKeys(t.Context(), instancesKey).Val())
	n, err := goredis.NewScript(markSource).Run(t.Context(), c, []string{instancesKey}, "me", 1, markKept.Milliseconds(), 1).Int()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"me"}, c.HKeys(t.Context(), instancesKey).Val())
}

func TestTheFenceFollowsThePresence(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	p := &presence{ttl: 15 * time.Second, renew: 5 * time.Second, renewed: begin}
	require.Zero(t, p.fence(begin.Add(15*time.Second)), "in time")
	late := begin.Add(15*time.Second + time.Millisecond)
	require.True(t, p.fence(late).After(late), "nothing is begun")
	p.renewed, p.gap = late, late
	require.Equal(t, late, p.fence(late.Add(time.Second)), "nothing from before the gap")
	p.taken = true
	require.True(t, p.fence(late).After(late), "another process has the name")
	p.taken, p.renewed = false, late.Round(0)
	require.True(t, p.fence(late.Add(16*time.Second).Round(0)).After(late), "by the wall clock")
}

// An instance whose user has lost a right is dead for all others, although the server answers.
func TestALostRightEndsThePresence(t *testing.T) {
	t.Parallel()
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		t.Parallel()
		admin := s.Client(t)
		user := func(rules ...any) {
			require.NoError(t, admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "service", "reset", "on", ">secret", "~*", "+@all"}, rules...)...).Err())
		}
		user()
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr, Username: "service", Password: "secret"})
		t.Cleanup(func() { _ = c.Close() })
		presence := withTTL(t, c, "it", time.Second)
		plugin := New()
		plugin.client, plugin.presence = c, presence
		require.NoError(t, presence.acquire(t.Context()))
		require.NoError(t, plugin.check(t.Context()))

		user("-evalsha")
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			assert.ErrorContains(t, plugin.check(context.Background()), "other instances take this one for dead, because its presence was not renewed since ")
		}, 10*time.Second, 20*time.Millisecond)
		require.ErrorContains(t, plugin.check(t.Context()), "ACL SETUSER in plugins/redis/README.md")

		user()
		require.Eventually(t, func() bool { return plugin.check(context.Background()) == nil }, 10*time.Second, 20*time.Millisecond)
	})
}

// The server reports a gap that this process's clock has not seen.
func TestAPresenceThatIsMadeAgainIsAGap(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p := withTTL(t, c, "test-"+watermill.NewULID(), time.Minute)
		mine, err := p.run(t.Context(), p.ttl)
		require.NoError(t, err)
		require.True(t, mine)
		require.Zero(t, p.fence(time.Now()), "the first")
		mine, err = p.run(t.Context(), p.ttl)
		require.NoError(t, err)
		require.True(t, mine)
		require.Zero(t, p.fence(time.Now()), "renewed")
		require.NoError(t, c.Del(t.Context(), presenceKey(p.instance)).Err())
		before := time.Now()
		mine, err = p.run(t.Context(), p.ttl)
		require.NoError(t, err)
		require.True(t, mine)
		require.False(t, p.fence(time.Now()).Before(before))
		require.NoError(t, c.Set(t.Context(), presenceKey(p.instance), "another", time.Minute).Err())
		t.Cleanup(func() { c.Del(context.Background(), presenceKey(p.instance)) })
		mine, err = p.run(t.Context(), p.ttl)
		require.NoError(t, err)
		require.False(t, mine)
		require.True(t, p.fence(time.Now()).After(time.Now()), "its entries are another's")
	})
}

// Every reader of a route reads and begins nothing while another process has the instance's name,
// also when it has read before.
func TestTheReadersOfARouteAskThePresence(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p := New()
		p.env.Logger = slog.New(slog.DiscardHandler)
		p.client, p.presence = c, &presence{ttl: time.Minute, renew: 20 * time.Second, renewed: time.Now(), taken: true}
		p.cfg.PollInterval = time.Millisecond
		taken := func(taken bool) {
			p.presence.mu.Lock()
			defer p.presence.mu.Unlock()
			p.presence.taken = taken
		}
		var streams []poll.Options
		for range 2 {
			o := poll.Options{Config: p.cfg.Config, Stream: redistest.Stream(t, c)}
			o.Concurrency = 1
			streams = append(streams, o)
		}
		sub, err := p.open(t.Context(), pipeline.Endpoint{Name: "both", Group: "g"}, pipeline.Flow{}, streams...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		out, err := sub.Subscribe(t.Context(), "")
		require.NoError(t, err)
		require.Len(t, sub.Readers(), len(streams))
		handler := redistest.Handle(t, out, nil)
		add := func(payload string) {
			for _, s := range streams {
				require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: s.Stream, Values: []any{"message", payload + s.Stream}}).Err())
			}
		}
		read := func() bool { return sub.Readers()[0].Stats().Read+sub.Readers()[1].Stats().Read > 0 }
		begun := func(n int) func() bool { return func() bool { return handler.Handled() > n } }

		add("first")
		require.Never(t, read, 50*time.Millisecond, 5*time.Millisecond)
		taken(false)
		handler.WaitFor(t, 2)

		taken(true)
		add("second") // a read that is under way may bring it, but nothing begins it
		require.Never(t, begun(2), 50*time.Millisecond, 5*time.Millisecond)
		taken(false)
		handler.WaitFor(t, 4)
	})
}

// The version of an instance is known while its presence lasts, and a missing one is nothing.
func TestTheVersionOfAnInstance(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		first, second := withTTL(t, c, "test-"+watermill.NewULID(), time.Minute), withTTL(t, c, "test-"+watermill.NewULID(), time.Minute)
		first.version = "v1.2.3 (of a fork)"
		seen := func() map[string]string {
			all, more, err := readInstances(t.Context(), c, markMost)
			require.NoError(t, err)
			require.False(t, more)
			found := map[string]string{}
			for _, i := range all {
				if i.alive && (i.name == first.instance || i.name == second.instance) {
					found[i.name] = i.version
					require.Nil(t, i.state, "it has stored none")
				}
			}
			return found
		}
		require.NoError(t, first.acquire(t.Context()))
		require.NoError(t, second.acquire(t.Context()))
		require.Equal(t, map[string]string{first.instance: "v1.2.3 (of a fork)", second.instance: ""}, seen())
		mine, err := first.run(t.Context(), first.ttl)
		require.NoError(t, err)
		require.True(t, mine, "it is renewed")
		require.NoError(t, first.release(t.Context()))
		require.Equal(t, map[string]string{second.instance: ""}, seen())
	})
}
