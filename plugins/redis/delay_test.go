package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// retryPlugin is a plugin for pipelinetest.Start, on streams of its own.
func retryPlugin(t *testing.T, s redistest.Server) (p *Plugin, c goredis.UniversalClient, name string) {
	t.Helper()
	p, c = New(), s.Client(t)
	p.cfg.Addrs = []string{s.Addr}
	p.cfg.PollInterval, p.cfg.InitialPollInterval = 20*time.Millisecond, time.Millisecond
	return p, c, redistest.Prefix(t, c)
}

// orders is a route whose handler asks for a retry after a minute.
type orders struct {
	p    *Plugin
	name string
	runs chan string
	dead *pipelinetest.Recorder
}

func (orders) Name() string { return "orders" }

func (o orders) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "orders", From: o.p.Source(o.name, "g"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			o.runs <- pipeline.DeliveryFrom(m.Context()).Source
			return nil, pipeline.RetryAfter(errors.New("not now"), time.Minute)
		},
		Policy: pipeline.Policy{DeadLetter: o.dead, Retry: pipeline.RetryVia(o.p, o.name+"-retry", "g-retry", 5, pipeline.Backoff{First: time.Minute, Max: time.Minute})},
	})
	return nil
}

// A minute is a minute: nothing comes back before, although the stream of the retry topic is polled
// all the time, and the record is counted meanwhile. A process that ends leaves it to the next one.
func TestARetryThatIsDueInAMinuteWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p, c, name := retryPlugin(t, s)
		o := orders{p, name, make(chan string, 100), pipelinetest.NewRecorder("dead")}
		retry := name + "-retry"
		t.Run("before", func(t *testing.T) {
			pipelinetest.Start(t, p, o)
			commands := redistest.Watch(p.Client())
			require.NoError(t, p.Sink(name).Publish(t.Context(), message.NewMessage("1", []byte("x"))))
			require.Equal(t, name, <-o.runs)
			redistest.Eventually(t, "the record waits", func() bool { return testutil.ToFloat64(p.delays.waiting) == 1 })
			reads := commands.Count("xreadgroup")
			redistest.Eventually(t, "the streams are read again", func() bool { return commands.Count("xreadgroup") >= reads+8 })
			require.Empty(t, o.runs, "it came before its delay had passed")
			require.Zero(t, c.XLen(t.Context(), retry).Val())
			at := c.ZRangeWithScores(t.Context(), dueKey(retry), 0, -1).Val()
			require.Len(t, at, 1)
			now := c.Time(t.Context()).Val()
			require.InDelta(t, now.Add(time.Minute).UnixMilli(), at[0].Score, 30_000, "by the clock of the server")
			require.Empty(t, o.dead.Messages())
		})
		require.Zero(t, testutil.ToFloat64(p.delays.waiting), "no longer read here")
		t.Run("after", func(t *testing.T) {
			if s.Mini == nil { // its clock can't be set
				m := c.ZRange(t.Context(), dueKey(retry), 0, 0).Val()[0]
				require.NoError(t, c.ZAdd(t.Context(), dueKey(retry), goredis.Z{Score: 1, Member: m}).Err())
			} else {
				s.Mini.SetTime(time.Now().Add(time.Minute))
			}
			next, _, _ := retryPlugin(t, s)
			o.p = next
			pipelinetest.Start(t, next, o)
			require.Equal(t, retry, <-o.runs)
		})
	})
}

// opened is a plugin with a client on the server, and a mover of a stream that is not running.
func opened(t *testing.T, c goredis.UniversalClient, stream string) (*Plugin, *mover) {
	t.Helper()
	p := New()
	p.client = c
	return p, &mover{p: p, stream: stream, every: time.Minute, wake: func() {}, log: pipelinetest.Logger(t), ours: true}
}

// A process that ends after the move and before the ack leaves a pending entry, as with any other.
func TestAMovedEntryOutlivesItsProcess(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		p, m := opened(t, c, stream)
		e := entry.Entry{Key: "k", UUID: "u", Message: []byte("\x00\xff:12:"), Headers: map[string]string{"a": "ü"}}
		require.NoError(t, p.Server(nil).Do(t.Context(), p.delays.later(stream, e, 1)))
		redistest.Eventually(t, "it is moved", func() bool { m.round(t.Context()); return c.XLen(t.Context(), stream).Val() == 1 })
		require.Zero(t, c.Exists(t.Context(), dueKey(stream)).Val())

		require.NoError(t, c.XGroupCreate(t.Context(), stream, "g", "0").Err())
		require.Len(t, take(t, c, stream, "g", 10), 1, "a process reads it and dies")
		p.cfg.MinIdle, p.cfg.ReclaimInterval = 10*time.Millisecond, 10*time.Millisecond
		sub, err := p.Source(stream, "g").Open(t.Context(), pipeline.Flow{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		out, err := sub.Subscribe(context.WithoutCancel(t.Context()), "")
		require.NoError(t, err)
		got := redistest.ReceiveAck(t, out)
		require.Equal(t, "u", got.UUID)
		require.Equal(t, e.Message, []byte(got.Payload))
		require.Equal(t, message.Metadata{"a": "ü", pipeline.MetaKey: "k"}, got.Metadata)
		redistest.Eventually(t, "it is acknowledged", func() bool { return c.XPending(t.Context(), stream, "g").Val().Count == 0 })
	})
}

// What can't be added to its stream stays in the set, and is moved later.
func TestAnEntryThatCanNotBeMovedStays(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		p, m := opened(t, c, stream)
		require.NoError(t, c.Set(t.Context(), stream, "no stream", 0).Err())
		require.NoError(t, c.ZAdd(t.Context(), dueKey(stream), goredis.Z{Score: 7, Member: string(packed(entry.Entry{UUID: "u"}))}).Err())
		for range 3 {
			call := p.delays.due.Call([]string{stream, dueKey(stream)}, dueEntries, dueBytes)
			require.ErrorContains(t, p.Server(nil).Do(t.Context(), call), "WRONGTYPE")
			require.EqualValues(t, 7, c.ZRangeWithScores(t.Context(), dueKey(stream), 0, -1).Val()[0].Score)
		}
		require.GreaterOrEqual(t, m.round(t.Context()), m.every, "no busy loop")
		require.NoError(t, c.Del(t.Context(), stream).Err())
		require.Equal(t, m.every, m.round(t.Context()))
		require.EqualValues(t, 1, c.XLen(t.Context(), stream).Val())

		require.NoError(t, c.ZAdd(t.Context(), dueKey(stream), goredis.Z{Score: 7, Member: "of another program"}).Err())
		m.round(t.Context())
		all := c.XRange(t.Context(), stream, "-", "+").Val()
		require.Len(t, all, 2)
		require.Equal(t, map[string]any{"undecodable": "of another program"}, all[1].Values, "the reader makes it a dead letter")
	})
}

// What another program has written into the set does not stop the mover. A time that no delay can
// give is due, after what was due before, and delays nothing else.
func TestDueTimesThatNoDelayGives(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		p, m := opened(t, c, stream)
		now := time.Now()
		add := func(score any, name string) {
			t.Helper()
			require.NoError(t, c.Do(t.Context(), "ZADD", dueKey(stream), score, packed(entry.Entry{UUID: name})).Err())
		}
		add(-1, "negative")
		add("-inf", "before all")
		add("0.5", "fraction")
		add(now.UnixMicro(), "microseconds")
		add(now.UnixNano(), "nanoseconds")
		add("1e300", "no time")
		add("+inf", "never")
		require.NoError(t, p.Server(nil).Do(t.Context(), p.delays.later(stream, entry.Entry{UUID: "in a year"}, 365*24*3_600_000)))
		require.NoError(t, p.Server(nil).Do(t.Context(), p.delays.later(stream, entry.Entry{UUID: "the longest delay"}, time.Duration(math.MaxInt64).Milliseconds()+1)))

		// What can't be moved keeps its time.
		require.NoError(t, c.Set(t.Context(), stream, "no stream", 0).Err())
		before := c.ZRange(t.Context(), dueKey(stream), 0, -1).Val()
		require.Equal(t, m.every, m.round(t.Context()))
		require.Equal(t, before, c.ZRange(t.Context(), dueKey(stream), 0, -1).Val())
		require.NoError(t, c.Del(t.Context(), stream).Err())

		require.Equal(t, m.every, m.round(t.Context()))
		var moved []any
		for _, e := range c.XRange(t.Context(), stream, "-", "+").Val() {
			moved = append(moved, e.Values["uuid"])
		}
		require.ElementsMatch(t, []any{"before all", "negative", "fraction", "never", "no time", "nanoseconds", "microseconds"}, moved)
		require.EqualValues(t, 2, c.ZCard(t.Context(), dueKey(stream)).Val(), "delays of programs stay")

		// A call that moves no more says that another one is due, and not when the others are.
		add(now.UnixMicro(), "microseconds")
		add(now.UnixNano(), "nanoseconds")
		call := p.delays.due.Call([]string{stream, dueKey(stream)}, 1, dueBytes)
		require.NoError(t, p.Server(nil).Do(t.Context(), call))
		n, waiting, wait, err := dueReply(call)
		require.NoError(t, err)
		require.Equal(t, []any{int64(1), int64(3), time.Duration(0)}, []any{n, waiting, wait})
	})
}

// A process that only reads a stream also reports that the records of other processes are not moved.
func TestAMoveThatFailsIsReported(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream, log := redistest.Stream(t, c), &redistest.Lines{}
		p, _ := opened(t, c, stream)
		require.NoError(t, c.Set(t.Context(), stream, "no stream", 0).Err())
		require.NoError(t, c.ZAdd(t.Context(), dueKey(stream), goredis.Z{Score: 7, Member: string(packed(entry.Entry{UUID: "u"}))}).Err())
		m := &mover{p: p, stream: stream, every: time.Minute, wake: func() {}, log: slog.New(slog.NewTextHandler(log, nil)), ours: false}
		for range 3 {
			m.round(t.Context())
		}
		require.Equal(t, 1, log.Count("retry records of other processes are not moved"), "sampled: %s", log)
		require.Equal(t, 1, log.Count("stream="+stream))
		require.Equal(t, 1, log.Count("key="+dueKey(stream)))
		require.Equal(t, 1, log.Count("WRONGTYPE"))
		require.Equal(t, 1, log.Count("remedy="))
	})
}

// An idle stream has one look per interval; the next due time is waited for, and a full move goes
// on.
func TestTheNextLookForDueEntries(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		p, m := opened(t, c, stream)
		woken := 0
		m.wake = func() { woken++ }
		require.Equal(t, m.every, m.round(t.Context()))
		var calls []*Call
		for i := range dueEntries + 1 {
			calls = append(calls, p.delays.later(stream, entry.Entry{UUID: fmt.Sprint(i)}, 1))
		}
		calls = append(calls, p.delays.later(stream, entry.Entry{UUID: "in half a minute"}, 30_000), p.delays.later(stream, entry.Entry{UUID: "in an hour"}, 3_600_000))
		require.NoError(t, p.Server(nil).Do(t.Context(), calls...))
		require.NoError(t, p.Server(nil).Do(t.Context(), p.delays.later(stream, entry.Entry{UUID: "in an hour"}, 7_200_000)), "sent again")
		due := c.Time(t.Context()).Val().Add(2 * time.Millisecond)
		redistest.Eventually(t, "they are due", func() bool { return c.Time(t.Context()).Val().After(due) })
		require.Zero(t, m.round(t.Context()), "one more is due")
		wait := m.round(t.Context())
		require.Greater(t, wait, time.Duration(0))
		require.LessOrEqual(t, wait, 30*time.Second)
		require.Equal(t, 2, woken)
		require.EqualValues(t, dueEntries+1, c.XLen(t.Context(), stream).Val())
		require.EqualValues(t, 2, testutil.ToFloat64(p.delays.waiting))
		require.NoError(t, c.ZRem(t.Context(), dueKey(stream), string(packed(entry.Entry{UUID: "in half a minute"}))).Err())
		require.Equal(t, m.every, m.round(t.Context()), "another process may retry sooner than in an hour")
	})
}

// The script against a model: the set and the stream always have every entry once, in order.
func TestDueEntriesAreMovedOnceAndInOrder(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, _ := opened(t, c, "")
		rapid.Check(t, func(rt *rapid.T) {
			stream := redistest.Stream(t, c)
			ctx := context.Background()
			type waiting struct {
				at   int64
				name string
			}
			var model []waiting // in the order of the set
			var moved []string
			hour := c.Time(ctx).Val().Add(time.Hour).UnixMilli()
			for step := range rapid.IntRange(1, 20).Draw(rt, "steps") {
				if rapid.Bool().Draw(rt, "add") {
					w := waiting{rapid.Int64Range(1, 5).Draw(rt, "at"), fmt.Sprintf("%02d", step)}
					if rapid.Bool().Draw(rt, "later") {
						w.at += hour
					}
					e := packed(entry.Entry{UUID: w.name, Message: []byte(strings.Repeat("x", rapid.IntRange(0, 50).Draw(rt, "size")))})
					require.NoError(rt, c.ZAdd(ctx, dueKey(stream), goredis.Z{Score: float64(w.at), Member: string(e)}).Err())
					model = append(model, w)
					continue
				}
				most := rapid.IntRange(1, 4).Draw(rt, "most")
				call := p.delays.due.Call([]string{stream, dueKey(stream)}, most, dueBytes)
				require.NoError(rt, p.Server(nil).Do(ctx, call))
				n, left, next, err := dueReply(call)
				require.NoError(rt, err)
				// Equal due times are in the order of the bytes, which is no promise.
				sort.SliceStable(model, func(i, j int) bool { return model[i].at < model[j].at })
				due := 0
				for due < len(model) && model[due].at < hour {
					due++
				}
				require.EqualValues(rt, min(due, most), n)
				require.EqualValues(rt, len(model)-int(n), left)
				require.Equal(rt, left == 0, next < 0)
				all := c.XRange(ctx, stream, "-", "+").Val()
				require.Len(rt, all, len(moved)+int(n))
				for _, m := range all[len(moved):] {
					got, err := entry.Decode(m)
					require.NoError(rt, err)
					i := slices.IndexFunc(model, func(w waiting) bool { return w.name == got.UUID })
					require.GreaterOrEqual(rt, i, 0, "it was moved before")
					require.Equal(rt, model[0].at, model[i].at, "another one was due before")
					model = slices.Delete(model, i, i+1)
					moved = append(moved, got.UUID)
				}
			}
			require.EqualValues(rt, len(model), c.ZCard(ctx, dueKey(stream)).Val())
		})
	})
}

// The companion of a stream is on its node, or the stream is refused as a retry topic.
func TestTheDueKeyHasTheSlotOfItsStream(t *testing.T) {
	t.Parallel()
	one, other := redistest.Mini(t), redistest.Mini(t)
	c := halves(t, one.Addr, other.Addr, 2*time.Second)
	nodes := map[bool]int{}
	for i := range 20 {
		for _, name := range []string{"orders-retry-%d", "{orders-%d}:retry", "a{orders-%d}b", "a{orders-%d"} {
			stream := fmt.Sprintf(name, i)
			require.NoError(t, New().Sink(stream).(pipeline.Delayer).Delays(), stream)
			first := onNode(t, c, stream, one.Addr)
			require.Equal(t, first, onNode(t, c, dueKey(stream), one.Addr), stream)
			nodes[first]++
		}
	}
	require.Len(t, nodes, 2)
	for _, odd := range []string{"{}orders", "orders}", "a}b{c}d}"} {
		err := New().Sink(odd).(pipeline.Delayer).Delays()
		if hashTag(odd) != "" {
			require.NoError(t, err, odd)
			continue
		}
		require.ErrorContains(t, err, "must enclose a hash tag", odd)
		require.Error(t, New().Source(odd, "g").(pipeline.Delayer).Delays(), odd)
	}
	for _, stream := range []string{"orders", "{orders}:retry"} {
		p, m := opened(t, c, stream)
		require.NoError(t, p.Server(nil).Do(t.Context(), p.delays.later(stream, entry.Entry{UUID: "u"}, 1)))
		redistest.Eventually(t, "it is moved", func() bool { m.round(t.Context()); return c.XLen(t.Context(), stream).Val() == 1 })
	}
}

// A full server refuses new retry records, as it refuses new entries, and still moves those that
// are due: only an entry that is in the stream can be handled.
func TestAFullServerMovesWhatIsDue(t *testing.T) {
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		c := s.Client(t)
		p, m := opened(t, c, "orders-retry")
		require.NoError(t, p.Server(nil).Do(t.Context(), p.delays.later("orders-retry", entry.Entry{UUID: "u"}, 1)))
		require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
		err := p.Server(nil).Do(t.Context(), p.delays.later("orders-retry", entry.Entry{UUID: "v"}, 1))
		require.ErrorIs(t, err, pipeline.ErrUnavailable)
		require.ErrorContains(t, err, "the server is full")
		redistest.Eventually(t, "it is moved", func() bool { m.round(t.Context()); return c.XLen(t.Context(), "orders-retry").Val() == 1 })
	})
}

// Messages of one publish have their own errors and their own due times.
func TestSomeMessagesOfAPublishAreDue(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p, c, name := retryPlugin(t, s)
		o := orders{p, name, make(chan string, 100), pipelinetest.NewRecorder("dead")}
		reg, err := pipeline.NewRegistry(pipeline.Env{}, p, o)
		require.NoError(t, err)
		require.NotEmpty(t, reg.Routes())
		p.client = c
		msg := func(id, due string) *message.Message {
			m := message.NewMessage(id, nil)
			if due != "" {
				m.Metadata.Set(pipeline.MetaDue, due)
			}
			return m
		}
		hour, past := time.Now().Add(time.Hour).Format(time.RFC3339Nano), time.Now().Add(-time.Hour).Format(time.RFC3339Nano)
		msgs := []*message.Message{msg("a", ""), msg("b", hour), msg("c", past), msg("d", "next tuesday"), msg("e", "9999-01-01T00:00:00Z"), msg("f", time.Now().Add(math.MaxInt64).Format(time.RFC3339Nano))}
		require.NoError(t, p.Sink(name+"-retry").Publish(t.Context(), msgs...))
		require.EqualValues(t, 4, c.XLen(t.Context(), name+"-retry").Val(), "no delay is as long as that of e")
		require.EqualValues(t, 2, c.ZCard(t.Context(), dueKey(name+"-retry")).Val())
		require.NoError(t, p.Sink(name).Publish(t.Context(), msgs...), "no retry topic: the header means nothing")
		require.EqualValues(t, 6, c.XLen(t.Context(), name).Val())

		require.NoError(t, c.Del(t.Context(), dueKey(name+"-retry")).Err())
		require.NoError(t, c.Set(t.Context(), dueKey(name+"-retry"), "no set", 0).Err())
		err = p.Sink(name+"-retry").Publish(t.Context(), msgs...)
		var partial *pipeline.PartialError
		require.ErrorAs(t, err, &partial)
		require.Len(t, partial.Failed, 2)
		require.ErrorContains(t, partial.Failed[1], "delay message b")
		require.ErrorContains(t, partial.Failed[5], "WRONGTYPE")
	})
}
