package streams

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func readSome(t require.TestingT, s server, stream, group, consumer string, n int64) []string {
	got, err := s.client.XReadGroup(context.Background(), &goredis.XReadGroupArgs{Group: group, Consumer: consumer, Streams: []string{stream, ">"}, Count: n, Block: -1}).Result()
	if errors.Is(err, goredis.Nil) {
		return nil
	}
	require.NoError(t, err)
	var ids []string
	for _, m := range got[0].Messages {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestEnqueueScript(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MaxLen = 5
		in := newInstance(t, s, "a", newActiveSet(), c)
		ctx := t.Context()
		stream, group := in.opts.Kind.Stream("1"), in.opts.Kind.Group("1")

		n, err := in.addEntries(ctx, "1", entries(0, 1))
		require.NoError(t, err)
		require.Equal(t, -1, n, "an absent stream is not made by an enqueue")
		require.Zero(t, s.client.Exists(ctx, stream).Val())

		require.NoError(t, s.client.XAdd(ctx, &goredis.XAddArgs{Stream: stream, Values: []any{"message", "foreign"}}).Err())
		n, err = in.addEntries(ctx, "1", entries(0, 1))
		require.NoError(t, err)
		require.Equal(t, -1, n, "a stream without its group has no reader")

		require.NoError(t, in.Ensure(ctx, "1"))
		n, err = in.addEntries(ctx, "1", entries(0, 3))
		require.NoError(t, err)
		require.Equal(t, 3, n)
		n, err = in.addEntries(ctx, "1", entries(3, 3))
		require.NoError(t, err)
		require.Equal(t, 1, n, "a prefix up to max_len, the foreign entry counts")
		n, err = in.addEntries(ctx, "1", entries(9, 1))
		require.NoError(t, err)
		require.Zero(t, n)

		ids := readSome(t, s, stream, group, "r-0", 10)
		require.Len(t, ids, 5, "the group was made at 0: the foreign entry is read too")
		require.NoError(t, s.client.XAck(ctx, stream, group, ids[0], ids[1]).Err())
		n, err = in.addEntries(ctx, "1", entries(10, 5))
		require.NoError(t, err)
		require.Equal(t, 2, n, "acknowledged entries make room")
		require.Equal(t, int64(5), s.client.XLen(ctx, stream).Val())

		first := s.client.XRange(ctx, stream, "-", "+").Val()[0]
		require.Equal(t, ids[2], first.ID, "what is pending stays")
		require.Equal(t, "2", s.client.XRangeN(ctx, stream, "-", "+", 2).Val()[1].Values["message"])
	})
}

func TestWireFormat(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet(), quick())
		require.NoError(t, in.Ensure(t.Context(), "1"))
		e := entry.Entry{Key: "777", UUID: "id-1", Message: []byte(`{"a":"ü\u0000"}`), Headers: map[string]string{"x": "1"}}
		out, err := in.Enqueue(t.Context(), "1", e)
		require.NoError(t, err)
		require.Equal(t, Added, out)
		raw, err := s.client.Do(t.Context(), "XRANGE", in.opts.Kind.Stream("1"), "-", "+").Slice()
		require.NoError(t, err)
		require.Equal(t, []any{"key", "777", "message", `{"a":"ü\u0000"}`, "uuid", "id-1", "headers", `{"x":"1"}`}, raw[0].([]any)[1])
	})
}

func TestCreateScriptRenewsTheIncarnationOnlyWhenSomethingWasLost(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet(), quick())
		ctx := t.Context()
		stream, group := in.opts.Kind.Stream("7"), in.opts.Kind.Group("7")
		token := func() string {
			require.NoError(t, in.Ensure(ctx, "7"))
			st, err := in.Inspect(ctx, "7")
			require.NoError(t, err)
			require.True(t, st.Exists)
			require.NotEmpty(t, st.Incarnation)
			return st.Incarnation
		}
		st, err := in.Inspect(ctx, "7")
		require.NoError(t, err)
		require.Equal(t, State{Drained: true}, st)

		first := token()
		require.Equal(t, first, token(), "BUSYGROUP is success and changes nothing")

		require.NoError(t, s.client.Del(ctx, stream, MetaKey(stream)).Err())
		second := token()
		require.NotEqual(t, first, second, "stream and meta lost")

		require.NoError(t, s.client.Del(ctx, stream).Err())
		third := token()
		require.NotEqual(t, second, third, "only the stream lost")

		require.NoError(t, s.client.XGroupDestroy(ctx, stream, group).Err())
		fourth := token()
		require.NotEqual(t, third, fourth, "the group lost: the stream may be another one")

		require.NoError(t, s.client.Del(ctx, MetaKey(stream)).Err())
		require.NotEqual(t, fourth, token(), "only meta lost")

		require.NoError(t, s.client.Set(ctx, in.opts.Kind.Stream("8"), "x", 0).Err())
		require.ErrorContains(t, in.Ensure(ctx, "8"), "WRONGTYPE", "any other error than BUSYGROUP is one")
	})
}

func visitOnce(t require.TestingT, in *instance, id string) visited {
	stream := in.opts.Kind.Stream(id)
	got, err := parseVisited(in.scripts.visit.Run(context.Background(), in.client, []string{stream, MetaKey(stream)}, append(in.args(id), in.statusField(), "{}")...).Result())
	require.NoError(t, err)
	return got
}

func TestDeleteScriptOnlyWhenDrainedForLongEnough(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.IdleTimeout = 80 * time.Millisecond
		in := newInstance(t, s, "a", newActiveSet(), c)
		ctx := t.Context()
		stream, group := in.opts.Kind.Stream("1"), in.opts.Kind.Group("1")
		clean := func() int {
			answer, err := in.cleanUp(ctx, "1")
			require.NoError(t, err)
			return answer
		}
		// idle waits until the stream has been seen drained for the timeout.
		idle := func() {
			redistest.Eventually(t, "idle", func() bool { return visitOnce(t, in, "1").idleMillis >= c.IdleTimeout.Milliseconds() })
		}
		require.Equal(t, cleanAbsent, clean())
		require.Equal(t, visited{}, visitOnce(t, in, "1"))
		require.Zero(t, s.client.Exists(ctx, stream, MetaKey(stream)).Val(), "looking at an absent stream leaves nothing behind")

		require.NoError(t, in.Ensure(ctx, "1"))
		require.Equal(t, cleanNotDrained, clean(), "drained, but only just")
		idle()
		_, err := in.addEntries(ctx, "1", entries(0, 1))
		require.NoError(t, err)
		require.Equal(t, cleanNotDrained, clean(), "one unread entry")
		got := visitOnce(t, in, "1")
		require.False(t, got.drained)

		ids := readSome(t, s, stream, group, "other-0", 1)
		require.Equal(t, cleanNotDrained, clean(), "one pending entry")
		require.NoError(t, s.client.XAck(ctx, stream, group, ids...).Err())
		require.Equal(t, cleanNotDrained, clean(), "drained, but the clock starts again")
		idle()

		// Traffic that comes and goes between two looks counts too.
		_, err = in.addEntries(ctx, "1", entries(1, 1))
		require.NoError(t, err)
		require.NoError(t, s.client.XAck(ctx, stream, group, readSome(t, s, stream, group, "other-0", 1)...).Err())
		require.Equal(t, cleanNotDrained, clean(), "something happened since it was seen drained")
		idle()

		// A second group that has not read is a reason to stay.
		require.NoError(t, s.client.XGroupCreate(ctx, stream, "second", "$").Err())
		require.NoError(t, in.client.XAdd(ctx, &goredis.XAddArgs{Stream: stream, Values: []any{"message", "x"}}).Err())
		require.NoError(t, s.client.XAck(ctx, stream, group, readSome(t, s, stream, group, "other-0", 1)...).Err())
		require.Equal(t, cleanNotDrained, clean())
		require.False(t, visitOnce(t, in, "1").drained)
		require.NoError(t, s.client.XGroupDestroy(ctx, stream, "second").Err())
		visitOnce(t, in, "1")
		idle()
		require.Equal(t, cleanDeleted, clean())
		require.Zero(t, s.client.Exists(ctx, stream, MetaKey(stream)).Val(), "stream, group and meta are gone")
		require.Equal(t, cleanAbsent, clean())
	})
}

// A stream whose unread tail was deleted is drained, although last-delivered never reaches
// last-generated.
func TestDrainedDespiteADeletedTail(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet(), quick())
		ctx := t.Context()
		require.NoError(t, in.Ensure(ctx, "1"))
		id, err := s.client.XAdd(ctx, &goredis.XAddArgs{Stream: in.opts.Kind.Stream("1"), Values: []any{"message", "x"}}).Result()
		require.NoError(t, err)
		require.False(t, visitOnce(t, in, "1").drained)
		require.NoError(t, s.client.XDel(ctx, in.opts.Kind.Stream("1"), id).Err())
		require.True(t, visitOnce(t, in, "1").drained)
	})
}

// Entry ids are pairs of unsigned 64-bit numbers, more than a Lua number holds.
func TestTrimComparesIDsExactly(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet(), quick())
		ctx := t.Context()
		stream := in.opts.Kind.Stream("1")
		own := in.opts.Kind.Group("1")
		ids := []string{"9-9", "9-10", "10-2", "9007199254740993-1", "9007199254740993-18446744073709551613", "9007199254740993-18446744073709551614"}
		for _, id := range ids {
			require.NoError(t, s.client.XAdd(ctx, &goredis.XAddArgs{Stream: stream, ID: id, Values: []any{"message", id}}).Err())
		}
		require.NoError(t, s.client.XGroupCreate(ctx, stream, own, "0").Err())
		require.NoError(t, s.client.XGroupCreate(ctx, stream, "two", "0").Err())
		for i := range ids {
			one := readSome(t, s, stream, own, "c-0", 1)
			require.NoError(t, s.client.XAck(ctx, stream, own, one...).Err())
			two := readSome(t, s, stream, "two", "c-0", 1)
			require.Zero(t, visitOnce(t, in, "1").trimmed, "the other group holds %s", ids[i])
			require.NoError(t, s.client.XAck(ctx, stream, "two", two...).Err())
			require.EqualValues(t, 1, visitOnce(t, in, "1").trimmed, ids[i])
		}
		require.Zero(t, s.client.XLen(ctx, stream).Val())
	})
}

// Promise 4, nothing trimmed unread: any history of adds, reads, acks and deletions by any groups,
// against a model of what each group has acknowledged.
func TestTrimNeverRemovesUnreadOrPending(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MaxLen = 8
		in := newInstance(t, s, "a", newActiveSet(), c)
		ctx := context.Background()
		run := int64(0)
		rapid.Check(t, func(t *rapid.T) {
			run++
			stream, main := in.opts.Kind.Stream(fmt.Sprint(run)), in.opts.Kind.Group(fmt.Sprint(run))
			require.NoError(t, in.Ensure(ctx, fmt.Sprint(run)))
			defer s.client.Del(ctx, stream, MetaKey(stream))
			added := map[string]bool{}            // ids, removed ones included
			acked := map[string]map[string]bool{} // group → id
			held := map[string][]string{}         // group → ids pending
			groups := []string{main}
			acked[main] = map[string]bool{}
			ids := func() map[string]bool {
				out := map[string]bool{}
				for _, e := range s.client.XRange(ctx, stream, "-", "+").Val() {
					out[e.ID] = true
				}
				return out
			}
			check := func(op string) {
				now := ids()
				for id := range now {
					added[id] = true
				}
				for id := range added {
					if now[id] {
						continue
					}
					for _, g := range groups {
						require.True(t, acked[g][id], "%s removed %s, which group %s has not acknowledged", op, id, g)
					}
				}
			}
			t.Repeat(map[string]func(*rapid.T){
				"enqueue": func(t *rapid.T) {
					before := len(ids())
					want := rapid.IntRange(1, 5).Draw(t, "n")
					n, err := in.addEntries(ctx, fmt.Sprint(run), entries(0, want))
					require.NoError(t, err)
					after := ids()
					require.LessOrEqual(t, len(after), max(before, int(c.MaxLen)), "max_len is a bound")
					if n < want {
						require.Len(t, after, int(c.MaxLen), "refused although there is room")
					}
					check("enqueue")
				},
				"read": func(t *rapid.T) {
					g := rapid.SampledFrom(groups).Draw(t, "group")
					held[g] = append(held[g], readSome(t, s, stream, g, "c-0", int64(rapid.IntRange(1, 4).Draw(t, "n")))...)
				},
				"ack": func(t *rapid.T) {
					g := rapid.SampledFrom(groups).Draw(t, "group")
					if len(held[g]) == 0 {
						t.Skip("nothing pending")
					}
					at := rapid.IntRange(0, len(held[g])-1).Draw(t, "at")
					id := held[g][at]
					held[g] = append(held[g][:at:at], held[g][at+1:]...)
					require.NoError(t, s.client.XAck(ctx, stream, g, id).Err())
					acked[g][id] = true
				},
				"group": func(t *rapid.T) {
					if len(groups) == 3 {
						t.Skip("enough groups")
					}
					g := fmt.Sprintf("extra-%d", len(groups))
					require.NoError(t, s.client.XGroupCreate(ctx, stream, g, "0").Err())
					acked[g] = map[string]bool{}
					now := ids()
					for id := range added {
						if !now[id] {
							acked[g][id] = true // gone before this group came
						}
					}
					groups = append(groups, g)
				},
				"visit": func(t *rapid.T) {
					got := visitOnce(t, in, fmt.Sprint(run))
					check("visit")
					drained := true
					for id := range ids() {
						for _, g := range groups {
							drained = drained && acked[g][id]
						}
					}
					require.Equal(t, drained, got.drained)
					require.Equal(t, drained, got.length == 0, "all acknowledged entries are trimmed")
				},
			})
		})
	})
}
