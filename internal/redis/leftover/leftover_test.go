package leftover

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// leftovers is a stream of the test's own.
type leftovers struct {
	t      *testing.T
	c      goredis.UniversalClient
	stream string
	key    string // of the marks
}

// newLeftovers makes it. A round with marks at another key than subscriptionsKey touches no other
// test.
func newLeftovers(t *testing.T, c goredis.UniversalClient, key string) leftovers {
	l := leftovers{t, c, "test-" + watermill.NewULID(), key}
	require.NoError(t, c.XGroupCreateMkStream(t.Context(), l.stream, "g", "0").Err())
	t.Cleanup(func() {
		if key != subscriptionsKey {
			c.Del(context.Background(), key)
		}
		for field := range l.marks() {
			c.HDel(context.Background(), key, field)
		}
		c.Del(context.Background(), l.stream)
	})
	return l
}

// marks returns the marks of the stream's subscriptions.
func (l leftovers) marks() map[string]string {
	out := map[string]string{}
	for field, at := range l.c.HGetAll(context.Background(), l.key).Val() {
		if m, ok := parseMark(field); ok && m.Stream == l.stream {
			out[field] = at
		}
	}
	return out
}

// seen marks a subscription at a time.
func (l leftovers) seen(at time.Time, m Mark) string {
	m.Stream = l.stream
	require.NoError(l.t, l.c.HSet(l.t.Context(), l.key, m.field(), at.UnixMilli()).Err())
	return m.field()
}

func (l leftovers) consumer(group, name string) {
	require.NoError(l.t, l.c.XGroupCreateConsumer(l.t.Context(), l.stream, group, name).Err())
}

func (l leftovers) consumers() (names []string) {
	list, err := l.c.XInfoConsumers(l.t.Context(), l.stream, "g").Result()
	require.NoError(l.t, err)
	for _, c := range list {
		names = append(names, c.Name)
	}
	return names
}

func (l leftovers) groups() (names []string) {
	list, err := l.c.XInfoGroups(l.t.Context(), l.stream).Result()
	require.NoError(l.t, err)
	for _, g := range list {
		names = append(names, g.Name)
	}
	return names
}

func (l leftovers) round(after time.Duration) { l.roundAs(&Remover{after: after}) }

func (l leftovers) roundAs(s *Remover) {
	s.c, s.log, s.key = l.c, slog.New(slog.DiscardHandler), l.key
	s.seenLua, s.destroy = goredis.NewScript(seenSource), goredis.NewScript(destroySource)
	require.NoError(l.t, s.round(l.t.Context()))
}

// looked says when the last look was, and since when there was no pause between looks.
func (l leftovers) looked(at, since time.Time) {
	require.NoError(l.t, l.c.HSet(l.t.Context(), l.key, "looked", at.UnixMilli(), "looking", since.UnixMilli()).Err())
}

var (
	longAgo = time.UnixMilli(1)
	later   = time.Now().Add(24 * time.Hour) // a mark that does not grow old during a test
)

// A consumer goes when its subscription is marked, was not seen for long, and it holds nothing.
func TestConsumersOfKilledSubscriptionsAreRemoved(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		l := newLeftovers(t, c, "test-"+watermill.NewULID())
		for _, name := range []string{"killed-0", "living-0", "foreign-0"} {
			l.consumer("g", name)
		}
		require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: l.stream, Values: []any{"message", "x"}}).Err())
		held, err := c.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: "g", Consumer: "holding-0", Streams: []string{l.stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		killed := l.seen(longAgo, Mark{Group: "g", Consumer: "killed-0"})
		gone := l.seen(longAgo, Mark{Group: "nowhere", Consumer: "killed-0"})
		living := l.seen(later, Mark{Group: "g", Consumer: "living-0"})
		holding := l.seen(longAgo, Mark{Group: "g", Consumer: "holding-0"})
		l.round(0)
		require.ElementsMatch(t, []string{"living-0", "foreign-0", "holding-0"}, l.consumers())
		marks := l.marks()
		require.NotContains(t, marks, killed)
		require.NotContains(t, marks, gone)
		require.Contains(t, marks, living)
		require.Greater(t, marks[holding], "1", "looked at again later")

		require.NoError(t, c.XAck(t.Context(), l.stream, "g", held[0].Messages[0].ID).Err())
		l.seen(longAgo, Mark{Group: "g", Consumer: "holding-0"})
		l.round(0)
		require.ElementsMatch(t, []string{"living-0", "foreign-0"}, l.consumers())
		require.NotContains(t, l.marks(), holding)
	})
}

// A group of its own goes with its killed subscription, and what is pending in it; unless one of
// its consumers was active.
func TestOwnGroupsOfKilledSubscriptionsAreRemoved(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		l := newLeftovers(t, c, "test-"+watermill.NewULID())
		require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: l.stream, Values: []any{"message", "x"}}).Err())
		for _, group := range []string{"own-killed-0", "own-living-0", "own-foreign-0"} {
			require.NoError(t, c.XGroupCreate(t.Context(), l.stream, group, "0").Err())
			held, err := c.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{l.stream, ">"}, Block: -1}).Result()
			require.NoError(t, err)
			id := held[0].Messages[0].ID // claimed too: miniredis counts no read as activity
			require.NoError(t, c.XClaim(t.Context(), &goredis.XClaimArgs{Stream: l.stream, Group: group, Consumer: "c", Messages: []string{id}}).Err())
		}
		killed := Mark{Group: "own-killed-0", Consumer: "killed-0", OwnGroup: true}
		field := l.seen(longAgo, killed)
		l.seen(later, Mark{Group: "own-living-0", Consumer: "living-0", OwnGroup: true})
		l.round(time.Hour)
		require.ElementsMatch(t, []string{"g", "own-killed-0", "own-living-0", "own-foreign-0"}, l.groups(), "one was active just now")
		require.Greater(t, l.marks()[field], "1")
		l.seen(longAgo, killed)
		l.round(0)
		require.ElementsMatch(t, []string{"g", "own-living-0", "own-foreign-0"}, l.groups())
		require.NotContains(t, l.marks(), field)
	})
}

// After a time in which no subscription could be marked, nothing is removed before the living ones
// could mark themselves again.
func TestAPauseIsNoDeath(t *testing.T) {
	for _, test := range []struct {
		name       string
		looked, at time.Duration // ago: the last search, and the first without a pause
	}{
		{"no look before", -1, -1},
		{"the server was away", 3 * time.Hour, 9 * time.Hour},
		{"the server is back", time.Second, time.Minute},
		{"its clock was set back", -3 * time.Hour, 9 * time.Hour},
	} {
		t.Run(test.name, func(t *testing.T) {
			redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
				l := newLeftovers(t, c, "test-"+watermill.NewULID())
				require.NoError(t, c.XGroupCreate(t.Context(), l.stream, "own-me-0", "0").Err())
				mine := l.seen(longAgo, Mark{Group: "own-me-0", Consumer: "me-0", OwnGroup: true})
				if test.at > 0 {
					l.looked(time.Now().Add(-test.looked), time.Now().Add(-test.at))
				}
				l.roundAs(&Remover{after: time.Minute, grace: time.Hour})
				require.Contains(t, l.groups(), "own-me-0")

				l.looked(time.Now(), time.Now().Add(-3*time.Hour))
				l.roundAs(&Remover{after: time.Minute, grace: time.Hour})
				require.NotContains(t, l.groups(), "own-me-0", "it had the time to mark itself")
				require.NotContains(t, l.marks(), mine)
			})
		})
	}
}

// Many subscriptions share the rounds: the marks are looked through once per interval.
func TestRoundsAreShared(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		l := newLeftovers(t, c, "test-"+watermill.NewULID())
		l.consumer("g", "killed-0")
		killed := Mark{Group: "g", Consumer: "killed-0"}
		l.seen(longAgo, killed)
		l.looked(time.Now(), longAgo)
		for range 2 {
			l.roundAs(&Remover{grace: 24 * time.Hour, interval: 12 * time.Hour, marks: []Mark{{Stream: l.stream, Group: "g", Consumer: "me-0"}}})
			require.Len(t, l.marks(), 2, "it only marks its own")
		}
		l.looked(time.Now().Add(-13*time.Hour), longAgo)
		l.roundAs(&Remover{grace: 24 * time.Hour, interval: 12 * time.Hour, after: time.Hour})
		require.Empty(t, l.consumers())
		require.Len(t, l.marks(), 1)
	})
}
