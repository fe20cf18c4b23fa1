package redis

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// addWith adds an entry with an id, or with *, and returns its id.
func addWith(t *testing.T, c goredis.UniversalClient, stream, id string) string {
	t.Helper()
	id, err := c.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, ID: id, Values: []any{"message", "x"}}).Result()
	require.NoError(t, err)
	return id
}

// keeping is a domain with one shard, whose rounds are called by the test.
func keeping(t *testing.T, c goredis.UniversalClient, keep time.Duration) (p *Plugin, shard string, log *redistest.Lines, round func()) {
	t.Helper()
	p, name, _ := trims(t, c, func(cfg *Config) { cfg.Trim = false })
	p.cfg.Domains = []DomainConfig{{Prefix: name, Shards: 1, Group: "own", Keep: keep}}
	shard, log = p.cfg.Domains[0].Stream(0), &redistest.Lines{}
	require.NoError(t, c.XGroupCreateMkStream(t.Context(), shard, "own", "0").Err())
	p.trim.add(shard, "own", nil)
	return p, shard, log, func() {
		t.Helper()
		p.trim.round(t.Context(), c, slog.New(slog.NewTextHandler(log, nil)))
		require.Zero(t, testutil.ToFloat64(p.trim.metrics.failures), log)
	}
}

// An entry whose id is ahead of the clock stays for keep after its acknowledgement, and not until
// the clock has reached its id.
func TestAnEntryAheadOfTheClockIsKeptAsLongAsOthers(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, shard, log, round := keeping(t, c, time.Hour)
		handle := func() {
			require.NoError(t, c.XAck(t.Context(), shard, "own", take(t, c, shard, "own", 100)...).Err())
		}
		length := func() int64 { return c.XLen(t.Context(), shard).Val() }
		note := func() string { return c.HGet(t.Context(), MetaKey(shard), "ahead").Val() }
		hourLater := func() {
			id, since, _ := strings.Cut(note(), " ")
			at, err := strconv.ParseInt(since, 10, 64)
			require.NoError(t, err)
			require.NoError(t, c.HSet(t.Context(), MetaKey(shard), "ahead", fmt.Sprint(id, " ", at-time.Hour.Milliseconds())).Err())
		}
		ahead := addWith(t, c, shard, fmt.Sprint(time.Now().UnixMicro(), "-0"))
		round()
		require.Empty(t, note(), "it was not acknowledged")
		addWith(t, c, shard, "*")
		handle()
		round()
		round()
		require.EqualValues(t, 2, length())
		addWith(t, c, shard, "*")
		handle()
		round()
		hourLater()
		unread := addWith(t, c, shard, "*")
		round()
		require.EqualValues(t, 2, length(), "the first two are gone, the third has a while to stay")
		round()
		hourLater()
		round()
		require.Equal(t, unread, c.XRange(t.Context(), shard, "-", "+").Val()[0].ID, "what is unread stays")
		handle()
		round()
		hourLater()
		round()
		require.Zero(t, length())
		round()
		require.Empty(t, note())

		p.trim.measure(t.Context(), c, slog.New(slog.NewTextHandler(log, nil)))
		require.Equal(t, 1, log.Count("a producer has set an id that stops or delays a shard"), log)
		require.Equal(t, 1, log.Count("stream="+shard+" id="+ahead[:len(ahead)-1]), log)
		require.Equal(t, 1, log.Count("the ids are ahead of the server's clock"), log)
	})
}

// A domain that keeps entries for a moment is soon empty, whatever the ids were.
func TestADomainWithIdsAheadOfTheClockIsEmptied(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		_, shard, _, round := keeping(t, c, 20*time.Millisecond)
		fill(t, c, shard, 100)
		addWith(t, c, shard, fmt.Sprint(time.Now().UnixMicro(), "-0"))
		fill(t, c, shard, 200)
		require.NoError(t, c.XAck(t.Context(), shard, "own", take(t, c, shard, "own", 1000)...).Err())
		redistest.Eventually(t, "it is empty", func() bool { round(); return c.XLen(t.Context(), shard).Val() == 0 })
	})
}

// The last possible id ends a stream. Its entries are handled and removed, it can be shown, and a
// warning names it. miniredis accepts entries after it.
func TestTheLargestIDOfAll(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		for _, keep := range []time.Duration{0, time.Millisecond} {
			p, shard, log, round := keeping(t, c, keep)
			p.cfg.Addrs = []string{s.Addr}
			addWith(t, c, shard, "18446744073709551615-18446744073709551614")
			require.Equal(t, largestID, addWith(t, c, shard, "*"))
			require.Error(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: shard, Values: []any{"message", "x"}}).Err())

			var ids []string
			require.NoError(t, p.Each(t.Context(), shard, func(id string, _ *message.Message) error { ids = append(ids, id); return nil }))
			require.Len(t, ids, 2)
			tail := func(oldest bool) (pipeline.Subscription, <-chan *message.Message) {
				sub, err := p.Tail(shard, oldest).Open(t.Context(), pipeline.Flow{})
				require.NoError(t, err)
				out, err := sub.Subscribe(context.Background(), "")
				require.NoError(t, err)
				return sub, out
			}
			all, out := tail(true)
			redistest.Receive(t, out)
			redistest.Receive(t, out)
			require.NoError(t, all.Close())
			_, more := <-out
			require.False(t, more, "each entry comes once")
			none, _ := tail(false)
			require.NoError(t, none.Close())
			follow := NewScript(followSource).Call([]string{shard}, largestID, 10)
			require.NoError(t, serverOf(c).Do(t.Context(), follow))
			reply, err := follow.List()
			require.NoError(t, err)
			require.Equal(t, []any{largestID, int64(0), []any{}}, reply)

			backlog := func() (waiting, inFlight int64) {
				b, err := p.backlog(t.Context(), "own", shard)
				require.NoError(t, err)
				require.Zero(t, b.Oldest, "no id of a producer says when it was added")
				return *b.Waiting, *b.InFlight
			}
			waiting, inFlight := backlog()
			require.Equal(t, []int64{2, 0}, []int64{waiting, inFlight})
			round()
			require.EqualValues(t, 2, c.XLen(t.Context(), shard).Val())
			taken := take(t, c, shard, "own", 10)
			waiting, inFlight = backlog()
			require.Equal(t, []int64{0, 2}, []int64{waiting, inFlight})
			require.NoError(t, c.XAck(t.Context(), shard, "own", taken...).Err())
			waiting, inFlight = backlog()
			require.Equal(t, []int64{0, 0}, []int64{waiting, inFlight})
			redistest.Eventually(t, "its entries are removed", func() bool { round(); return c.XLen(t.Context(), shard).Val() == 0 })
			p.trim.measure(t.Context(), c, slog.New(slog.NewTextHandler(log, nil)))
			require.Equal(t, 1, log.Count("stream="+shard+" id="+largestID), log)
			require.Equal(t, 1, log.Count("the last possible id is used"), log)
			require.NoError(t, c.Del(t.Context(), shard).Err(), "the remedy")
			addWith(t, c, shard, "*")
			call := Measure(shard)
			require.NoError(t, serverOf(c).Do(t.Context(), call))
			m, err := MeasuredBy(call)
			require.NoError(t, err)
			require.Empty(t, m.Problem())
			require.EqualValues(t, 1, m.Entries)
		}
	})
}
