package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// trims starts a plugin that trims all the time, and returns it with a stream name of its own.
func trims(t *testing.T, c goredis.UniversalClient, change func(*Config)) (p *Plugin, name string, log *redistest.Lines) {
	t.Helper()
	p, name, log = New(), redistest.Prefix(t, c), &redistest.Lines{}
	p.cfg.Addrs = []string{c.(*goredis.Client).Options().Addr}
	if change != nil {
		change(&p.cfg)
	}
	require.NoError(t, p.cfg.Validate())
	p.env = pipeline.Env{Logger: slog.New(slog.NewTextHandler(log, nil)), Instance: name}
	p.trim.every = time.Millisecond
	require.NoError(t, service{p}.Start(t.Context()))
	t.Cleanup(func() {
		require.NoError(t, service{p}.Stop(context.Background()))
		_ = c.HDel(context.Background(), instancesKey, name).Err()
	})
	return p, name, log
}

// reads opens a source and acknowledges everything, until the returned function is called.
func reads(t *testing.T, from pipeline.Source) (stop func()) {
	t.Helper()
	sub, err := from.Open(t.Context(), pipeline.Flow{})
	require.NoError(t, err)
	messages, err := sub.Subscribe(context.Background(), "")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for msg := range messages {
			msg.Ack()
		}
	}()
	closed := false
	stop = func() {
		if !closed {
			closed = true
			_ = sub.Close()
			<-done
		}
	}
	t.Cleanup(stop)
	return stop
}

func fill(t require.TestingT, c goredis.UniversalClient, stream string, n int) {
	for i := range n {
		require.NoError(t, c.XAdd(context.Background(), &goredis.XAddArgs{Stream: stream, Values: []any{"message", fmt.Sprint(i)}}).Err())
	}
}

// take reads up to n new entries for a group.
func take(t require.TestingT, c goredis.UniversalClient, stream, group string, n int) (ids []string) {
	got, err := c.XReadGroup(context.Background(), &goredis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{stream, ">"}, Count: int64(n), Block: -1}).Result()
	if errors.Is(err, goredis.Nil) {
		return nil
	}
	require.NoError(t, err)
	for _, m := range got[0].Messages {
		ids = append(ids, m.ID)
	}
	return ids
}

// The streams of routes stay short, whatever a foreign group leaves unread; a required group misses
// nothing.
func TestTheStreamsOfRoutesStayShort(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, name, log := trims(t, c, func(cfg *Config) {
			cfg.ForeignGroupGrace, cfg.RequiredGroups = 0, []string{"audit"}
		})
		p.cfg.Domains = []DomainConfig{{Prefix: name, Shards: 2, Group: "own"}}
		streams := []string{name, name + ":0", name + ":1"}
		for _, stream := range streams {
			require.NoError(t, c.XGroupCreateMkStream(t.Context(), stream, "debug", "0").Err())
			require.NoError(t, c.XGroupCreate(t.Context(), stream, "audit", "0").Err())
		}
		reads(t, p.Source(name, "own"))
		reads(t, p.Domain(name).Source())
		for range 4 {
			for _, stream := range streams {
				fill(t, c, stream, 50)
				redistest.Eventually(t, "the own group has acknowledged all", func() bool {
					groups, err := c.XInfoGroups(t.Context(), stream).Result()
					own := slices.IndexFunc(groups, func(g goredis.XInfoGroup) bool { return g.Name == "own" })
					last, _ := c.XRevRangeN(t.Context(), stream, "+", "-", 1).Result()
					return err == nil && groups[own].Pending == 0 && len(last) == 1 && groups[own].LastDeliveredID == last[0].ID
				})
				ids := take(t, c, stream, "audit", 1000)
				require.Len(t, ids, 50, "the required group has missed nothing")
				require.NoError(t, c.XAck(t.Context(), stream, "audit", ids...).Err())
			}
			for _, stream := range streams {
				redistest.Eventually(t, "it is empty again", func() bool { return c.XLen(t.Context(), stream).Val() == 0 })
			}
		}
		redistest.Eventually(t, "each entry is counted once", func() bool { return testutil.ToFloat64(p.trim.metrics.trimmed) == 600 })
		require.Positive(t, log.Count("a foreign consumer group delays the trimming of a stream"))
		require.Positive(t, log.Count("group=debug"))
	})
}

// A foreign group has its grace; a group that was read here once is none; exceptions and trim:
// false keep everything.
func TestWhatIsNotTrimmed(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		for what, tt := range map[string]struct {
			change func(*Config, string)
			other  string
		}{
			"grace":      {func(*Config, string) {}, "debug"},
			"read here":  {func(cfg *Config, _ string) { cfg.ForeignGroupGrace = 0 }, "second"},
			"exception":  {func(cfg *Config, name string) { cfg.TrimExcept, cfg.ForeignGroupGrace = []string{name}, 0 }, ""},
			"no setting": {func(cfg *Config, _ string) { cfg.Trim, cfg.ForeignGroupGrace = false, 0 }, ""},
		} {
			t.Run(what, func(t *testing.T) {
				p, name, _ := trims(t, c, func(cfg *Config) { cfg.Trim = false })
				p.cfg.Trim = true
				tt.change(&p.cfg, name)
				if tt.other != "" {
					require.NoError(t, c.XGroupCreateMkStream(t.Context(), name, tt.other, "0").Err())
				}
				if what == "read here" {
					reads(t, p.Source(name, "second"))()
				}
				reads(t, p.Source(name, "own"))
				fill(t, c, name, 10)
				redistest.Eventually(t, "all is acknowledged", func() bool { return redistest.Metric(t, p.ReaderMetrics(), "acks_total") == 10 })
				if p.cfg.Trim {
					p.trim.round(t.Context(), p.client, p.env.Logger)
				} else {
					p.trim.start(t.Context(), p.client, p.env.Logger)
					require.Nil(t, p.trim.loops)
				}
				require.EqualValues(t, 10, c.XLen(t.Context(), name).Val())
				if tt.other != "" {
					require.NoError(t, c.XAck(t.Context(), name, tt.other, take(t, c, name, tt.other, 10)...).Err())
					p.trim.round(t.Context(), p.client, p.env.Logger)
					require.Zero(t, c.XLen(t.Context(), name).Val())
					require.Empty(t, p.trim.due(nil), "an empty stream costs nothing")
				}
			})
		}
	})
}

// A stream is trimmed while a route reads it: a route that has ended leaves what it acknowledged
// last to the others.
func TestAStreamThatIsNoLongerReadIsNotTrimmed(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, name, _ := trims(t, c, func(cfg *Config) { cfg.Trim = false })
		stop := reads(t, p.Source(name, "own"))
		fill(t, c, name, 10)
		redistest.Eventually(t, "all is acknowledged", func() bool { return redistest.Metric(t, p.ReaderMetrics(), "acks_total") == 10 })
		require.Len(t, p.trim.due(nil), 1)
		stop()
		redistest.Eventually(t, "it is no longer due", func() bool { return len(p.trim.due(nil)) == 0 })
		p.trim.round(t.Context(), p.client, p.env.Logger)
		require.EqualValues(t, 10, c.XLen(t.Context(), name).Val())
	})
}

// Entries are added, read and acknowledged in any order. An entry stays while its own group or a
// required one has not acknowledged it, or a foreign group within its grace. It also stays while it
// is younger than the domain's keep.
func TestNothingIsTrimmedThatAGroupHolds(t *testing.T) {
	t.Parallel()
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		run := 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			stream := fmt.Sprintf("trim-%s-%d", watermill.NewULID(), run)
			defer func() { _ = c.Del(context.Background(), stream, MetaKey(stream)).Err() }()
			cfg := DefaultConfig()
			cfg.RequiredGroups = []string{"audit"}
			cfg.ForeignGroupGrace = rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(rt, "grace")
			keep := rapid.SampledFrom([]time.Duration{0, time.Hour, 1 << 62}).Draw(rt, "keep")
			tr := newTrimmer(&cfg)
			ctx := context.Background()
			begin, err := c.Time(ctx).Result()
			require.NoError(rt, err)
			age := 2*time.Hour + 30*time.Second // of the next entry; it is never close to keep
			all := []string{"own", "second", "audit", "foreign"}
			count := all
			if cfg.ForeignGroupGrace == 0 {
				count = all[:3]
			}
			unread, pending, open := map[string][]string{}, map[string][]string{}, map[string]bool{}
			var added, young []string
			create := func(group string) {
				require.NoError(rt, c.XGroupCreateMkStream(ctx, stream, group, "0").Err())
				there, err := c.XRange(ctx, stream, "-", "+").Result()
				require.NoError(rt, err)
				for _, e := range there {
					unread[group] = append(unread[group], e.ID)
				}
				open[group] = true
			}
			create("own")
			trim := func(rt *rapid.T) {
				got, err := tr.trim(ctx, c, visit{stream: stream, reading: []string{"own"}, count: []string{"second", "audit"}, keep: keep})
				require.NoError(rt, err)
				there, err := c.XRange(ctx, stream, "-", "+").Result()
				require.NoError(rt, err)
				require.Len(rt, there, int(got.left))
				require.Zero(rt, got.losers, "no other program has removed anything")
				for _, id := range young {
					require.True(rt, slices.ContainsFunc(there, func(e goredis.XMessage) bool { return e.ID == id }), "%s is younger than keep", id)
				}
				for _, group := range count {
					for _, id := range append(slices.Clone(unread[group]), pending[group]...) {
						require.True(rt, slices.ContainsFunc(there, func(e goredis.XMessage) bool { return e.ID == id }), "%s holds %s", group, id)
					}
				}
			}
			rt.Repeat(map[string]func(*rapid.T){
				"add": func(rt *rapid.T) {
					age -= rapid.SampledFrom([]time.Duration{0, time.Minute, 30 * time.Minute}).Draw(rt, "later")
					age = max(age, 0)
					id := fmt.Sprintf("%d-%d", begin.Add(-age).UnixMilli(), len(added))
					require.NoError(rt, c.XAdd(ctx, &goredis.XAddArgs{Stream: stream, ID: id, Values: []any{"message", "x"}}).Err())
					added = append(added, id)
					if age < keep {
						young = append(young, id)
					}
					for group := range open {
						unread[group] = append(unread[group], id)
					}
				},
				"create": func(rt *rapid.T) {
					if group := rapid.SampledFrom(all).Draw(rt, "group"); !open[group] {
						create(group)
					}
				},
				"read": func(rt *rapid.T) {
					group := rapid.SampledFrom(all).Draw(rt, "group")
					if !open[group] {
						return
					}
					ids := take(rt, c, stream, group, rapid.IntRange(1, 3).Draw(rt, "n"))
					switch {
					case len(ids) == 0:
						require.False(rt, slices.Contains(count, group) && len(unread[group]) > 0, "%s finds what it has not read", group)
						return
					case slices.Contains(count, group):
						require.Equal(rt, unread[group][:len(ids)], ids, "nothing is skipped")
					}
					unread[group] = unread[group][slices.Index(unread[group], ids[len(ids)-1])+1:]
					pending[group] = append(pending[group], ids...)
				},
				"ack": func(rt *rapid.T) {
					group := rapid.SampledFrom(all).Draw(rt, "group")
					if len(pending[group]) == 0 {
						return
					}
					i := rapid.IntRange(0, len(pending[group])-1).Draw(rt, "which")
					require.NoError(rt, c.XAck(ctx, stream, group, pending[group][i]).Err())
					pending[group] = slices.Delete(pending[group], i, i+1)
				},
				"trim": trim,
			})
			for _, group := range count {
				if open[group] {
					pending[group] = append(pending[group], take(rt, c, stream, group, len(added)+1)...)
					if len(pending[group]) > 0 {
						require.NoError(rt, c.XAck(ctx, stream, group, pending[group]...).Err())
					}
					unread[group], pending[group] = nil, nil
				}
			}
			trim(rt)
			require.EqualValues(rt, len(young), c.XLen(ctx, stream).Val(), "nothing else is kept that no group holds")
		})
	})
}

// While a group that reads here is missing, nothing is trimmed: it is made again at 0.
func TestNothingIsTrimmedThatAMissingGroupReads(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, name, _ := trims(t, c, func(cfg *Config) { cfg.Trim, cfg.ForeignGroupGrace = false, 0 })
		fill(t, c, name, 5)
		p.trim.add(name, "own", nil)
		stop := p.trim.add(name, "second", nil)
		round := func() int64 {
			p.trim.round(t.Context(), p.client, p.env.Logger)
			return c.XLen(t.Context(), name).Val()
		}
		require.NoError(t, c.XGroupCreate(t.Context(), name, "own", "0").Err())
		require.NoError(t, c.XAck(t.Context(), name, "own", take(t, c, name, "own", 4)...).Err())
		require.EqualValues(t, 5, round())
		require.NoError(t, c.XGroupCreate(t.Context(), name, "second", "0").Err())
		require.NoError(t, c.XAck(t.Context(), name, "second", take(t, c, name, "second", 2)...).Err())
		require.EqualValues(t, 3, round(), "both have acknowledged two")
		require.NoError(t, c.XGroupDestroy(t.Context(), name, "second").Err())
		require.EqualValues(t, 3, round(), "a person, or a failover, has removed the group")
		stop()
		require.EqualValues(t, 1, round(), "no route reads with it any more")
	})
}

// The group of a domain counts, also where the domain's route is switched off.
func TestTheGroupOfADomainIsNotForeign(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, name, _ := trims(t, c, func(cfg *Config) { cfg.Trim, cfg.ForeignGroupGrace = false, 0 })
		p.cfg.Domains = []DomainConfig{{Prefix: name, Shards: 1, Group: "domain"}}
		shard := p.cfg.Domains[0].Stream(0)
		fill(t, c, shard, 5)
		for _, group := range []string{"domain", "own"} {
			require.NoError(t, c.XGroupCreate(t.Context(), shard, group, "0").Err())
		}
		p.trim.add(shard, "own", nil)
		require.NoError(t, c.XAck(t.Context(), shard, "own", take(t, c, shard, "own", 5)...).Err())
		p.trim.round(t.Context(), p.client, p.env.Logger)
		require.EqualValues(t, 5, c.XLen(t.Context(), shard).Val())
		require.NoError(t, c.XAck(t.Context(), shard, "domain", take(t, c, shard, "domain", 5)...).Err())
		p.trim.round(t.Context(), p.client, p.env.Logger)
		require.Zero(t, c.XLen(t.Context(), shard).Val())
	})
}

// Another program trims entries that a group has not read. It is counted and logged once per loss,
// and so is the length of the shard.
func TestEntriesThatAreRemovedUnread(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, name, log := trims(t, c, func(cfg *Config) { cfg.Trim = false })
		d := DomainConfig{Prefix: name, Shards: 2, Group: "own", MaxLen: 4, Keep: time.Hour}
		p.cfg.Domains = []DomainConfig{d}
		shard := d.Stream(0)
		require.NoError(t, c.XGroupCreateMkStream(t.Context(), shard, "own", "0").Err())
		p.trim.add(shard, "own", nil)
		round := func(why string, losses, left int) {
			p.trim.round(t.Context(), c, p.env.Logger)
			p.trim.measure(t.Context(), c, p.env.Logger)
			require.InDelta(t, losses, testutil.ToFloat64(p.trim.metrics.unreadRemoved), 0, why)
			require.Equal(t, losses, log.Count("entries were removed from a stream before they were read"), why)
			require.InDelta(t, left, testutil.ToFloat64(p.trim.metrics.entries.WithLabelValues(name, "0")), 0, why)
		}
		fill(t, c, shard, 5)
		round("nothing is read", 0, 5)
		ids := take(t, c, shard, "own", 2)
		require.NoError(t, c.XAck(t.Context(), shard, "own", ids...).Err())
		round("two are read", 0, 5)
		require.NoError(t, c.XTrimMaxLen(t.Context(), shard, 3).Err())
		round("two that were read are removed", 0, 3)
		require.NoError(t, c.XTrimMaxLen(t.Context(), shard, 2).Err())
		round("one is removed unread", 1, 2)
		round("it is counted once", 1, 2)
		require.NoError(t, c.XGroupDestroy(t.Context(), shard, "own").Err())
		require.NoError(t, c.XGroupCreate(t.Context(), shard, "own", "0").Err())
		round("a new group has lost nothing", 1, 2)
		take(t, c, shard, "own", 2)
		require.NoError(t, c.XTrimMaxLen(t.Context(), shard, 0).Err())
		round("both were read before they were removed", 1, 0)
		fill(t, c, shard, 1)
		round("a new entry", 1, 1)
		require.NoError(t, c.Del(t.Context(), shard).Err())
		require.NoError(t, c.XGroupCreateMkStream(t.Context(), shard, "own", "0").Err())
		round("the stream was removed with an entry", 2, 0)

		require.InDelta(t, 4, testutil.ToFloat64(p.trim.metrics.maxLen.WithLabelValues(name, "1")), 0)
		require.Equal(t, 2, testutil.CollectAndCount(p.trim.metrics.entries))
		require.NoError(t, c.Set(t.Context(), d.Stream(1), "no stream", 0).Err())
		p.trim.measure(t.Context(), c, p.env.Logger)
		require.Equal(t, 1, testutil.CollectAndCount(p.trim.metrics.entries), "an unknown length has no series")
		require.Equal(t, 1, log.Count("the entries of a shard were not counted"))
	})
}

// Acknowledged entries of a domain stay for its keep, and are then removed without a new one.
func TestADomainKeepsItsAcknowledgedEntries(t *testing.T) {
	t.Parallel()
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, name, _ := trims(t, c, nil)
		p.cfg.Domains = []DomainConfig{{Prefix: name, Shards: 1, Group: "own", Keep: time.Second}}
		reads(t, p.Domain(name).Source())
		shard := p.cfg.Domains[0].Stream(0)
		fill(t, c, shard, 5)
		last, err := c.XRevRangeN(t.Context(), shard, "+", "-", 1).Result()
		require.NoError(t, err)
		redistest.Eventually(t, "all is acknowledged", func() bool { return redistest.Metric(t, p.ReaderMetrics(), "acks_total") == 5 })
		redistest.Eventually(t, "it is empty", func() bool { return c.XLen(t.Context(), shard).Val() == 0 })
		now, err := c.Time(t.Context()).Result()
		require.NoError(t, err)
		millis, _, _ := strings.Cut(last[0].ID, "-")
		added, err := strconv.ParseInt(millis, 10, 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, now.Sub(time.UnixMilli(added)), time.Second)
	})
}

// A round that a server has ended comes back to the streams that it had not visited.
func TestAStreamThatARoundDidNotReachIsDueAgain(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	tr := newTrimmer(&cfg)
	acked := int64(0)
	for i := range 3 {
		tr.add(fmt.Sprint("s", i), "g", func() int64 { return acked })
	}
	for _, s := range tr.streams {
		s.left = false
	}
	require.Empty(t, tr.due(nil))
	acked = 1
	away := goredis.NewClient(&goredis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("away") }})
	t.Cleanup(func() { require.NoError(t, away.Close()) })
	tr.round(t.Context(), away, slog.New(slog.DiscardHandler))
	require.Len(t, tr.due(nil), 3)
}

func TestShardsOfAPrefix(t *testing.T) {
	t.Parallel()
	require.True(t, isShard("scan:events", "scan:events:12"))
	for _, stream := range []string{"scan:events", "scan:events:", "scan:events:x", "scan:events:1x", "scan:event:1"} {
		require.False(t, isShard("scan:events", stream), stream)
	}
}

// A node of a Cluster that does not answer delays no trimming on another one.
func TestASilentNodeDelaysNoTrimmingOnAnother(t *testing.T) {
	t.Parallel()
	answers, silent := redistest.Mini(t), redistest.Mini(t)
	proxy := redistest.NewProxy(t, silent.Addr)
	t.Cleanup(func() { proxy.SetDown(true) })
	c := halves(t, answers.Addr, proxy.Addr(), 2*time.Second)
	trim := newTrimmer(&Config{TrimConfig: TrimConfig{Trim: true}})
	for i := range 20 {
		stream := fmt.Sprint("ENTRY:{", i, "}")
		require.NoError(t, c.XGroupCreateMkStream(t.Context(), stream, "g", "0").Err())
		fill(t, c, stream, 1)
		require.NoError(t, c.XAck(t.Context(), stream, "g", take(t, c, stream, "g", 1)...).Err())
		trim.addOn(func() goredis.UniversalClient { return c }, stream, "g", nil)
	}
	proxy.Mute()
	proxy.Cut()
	trim.round(t.Context(), c, slog.New(slog.DiscardHandler))
	for _, stream := range answers.Mini.Keys() {
		if !strings.HasSuffix(stream, ":meta") {
			require.Zero(t, answers.Client(t).XLen(t.Context(), stream).Val(), stream)
		}
	}
	require.InDelta(t, 1, testutil.ToFloat64(trim.metrics.failures), 0, "the others of that node are left out of the round")
}
