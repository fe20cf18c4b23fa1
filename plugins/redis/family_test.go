package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// family is a family with its list, and the messages that its handler has acknowledged.
type family struct {
	*redis.Family
	t      *testing.T
	admin  goredis.UniversalClient
	prefix string
	sub    pipeline.Subscription
	out    <-chan *message.Message

	mu   sync.Mutex
	list []string
	err  error
}

func openFamily(t *testing.T, s redistest.Server, change func(*redis.Plugin, *redis.FamilyOptions)) *family {
	t.Helper()
	admin := s.Client(t)
	f := &family{t: t, admin: admin, prefix: redistest.Prefix(t, admin) + ":"}
	p, _, err := start(t, s.Addr, "test-"+watermill.NewULID(), redistest.Logger(t))
	require.NoError(t, err)
	o := redis.FamilyOptions{Name: f.prefix + "<id>", Group: group, List: f.names, ListInterval: 5 * time.Millisecond}
	if change != nil {
		change(p, &o)
	}
	f.Family = p.Family(o)
	f.sub, err = f.Source().Open(t.Context(), pipeline.Flow{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.sub.Close()) })
	f.out, err = f.sub.Subscribe(context.Background(), "")
	require.NoError(t, err)
	return f
}

func (f *family) names(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list, f.err
}

// has sets the list.
func (f *family) has(err error, ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.list = err, nil
	for _, id := range ids {
		f.list = append(f.list, f.prefix+id)
	}
}

func (f *family) add(id, payload string) { add(f.t, f.admin, f.prefix+id, payload) }

// gets receives and acknowledges a message, and checks its payload and its stream.
func (f *family) gets(id, payload string) {
	f.t.Helper()
	m := redistest.ReceiveAck(f.t, f.out)
	require.Equal(f.t, payload, string(m.Payload))
	require.Equal(f.t, f.prefix+id, pipeline.DeliveryFrom(m.Context()).Source)
}

// getsAgain receives until a message comes. The new group of a stream begins at 0, so an old message
// comes again, and it may come late: while its acknowledgement for the lost group is on its way, it
// is not delivered.
func (f *family) getsAgain(old, payload string) {
	f.t.Helper()
	for m := redistest.ReceiveAck(f.t, f.out); string(m.Payload) != payload; m = redistest.ReceiveAck(f.t, f.out) {
		require.Equal(f.t, old, string(m.Payload))
	}
}

func (f *family) reads(n int) {
	f.t.Helper()
	redistest.Eventually(f.t, "streams are read", func() bool { return len(f.Reading()) == n })
}

func (f *family) exists(id string) bool {
	n, err := f.admin.Exists(f.t.Context(), f.prefix+id).Result()
	require.NoError(f.t, err)
	return n == 1
}

// A stream that this instance reads counts at once, also where a server has so many keys that it is found late.
func TestAStreamThatIsReadCountsAtOnce(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		f := openFamily(t, s, nil)
		pipe := f.admin.Pipeline()
		for i := range 5000 { // more than a search looks at with one command
			pipe.Set(t.Context(), fmt.Sprint("other:", f.prefix, i), "x", 10*time.Minute)
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		streams := func() int {
			b, err := f.Source().(operate.Measured).Backlog(t.Context())
			require.NoError(t, err)
			return b.Streams.Total
		}
		f.add("a", "one")
		f.has(nil, "a")
		f.gets("a", "one")
		require.Equal(t, 1, streams())
		f.add("b", "two")
		f.has(nil, "a", "b")
		f.reads(2)
		require.Equal(t, 2, streams())
	})
}

func TestStreamsOfAFamilyComeAndGo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		f := openFamily(t, s, nil)
		f.add("a", "before the group")
		f.add("b", "not in the list")
		f.has(nil, "a", "none")
		f.gets("a", "before the group")
		f.has(nil, "a", "b", "none")
		f.gets("b", "not in the list")
		f.reads(2)
		require.False(t, f.exists("none"), "the family creates no stream")

		require.NoError(t, f.admin.Del(t.Context(), f.prefix+"a").Err())
		f.reads(1)
		require.False(t, f.exists("a"), "a stream that vanished does not come back")
		f.add("a", "again")
		f.gets("a", "again")

		require.NoError(t, f.admin.XGroupDestroy(t.Context(), f.prefix+"b", group).Err())
		f.add("b", "after the loss of the group")
		f.getsAgain("not in the list", "after the loss of the group")

		f.has(nil, "a")
		f.reads(1)
		f.add("b", "waits")
		f.has(errors.New("no list"))
		f.add("a", "read without a list")
		f.gets("a", "read without a list")
		f.has(nil, "b")
		f.getsAgain("not in the list", "waits")
	})
}

func TestAStreamOfAFamilyThatFailsDelaysNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		f := openFamily(t, s, nil)
		require.NoError(t, f.admin.Set(t.Context(), f.prefix+"bad", "text", 0).Err())
		f.add("turns", "1")
		f.has(nil, "bad", "turns", "good")
		f.gets("turns", "1")
		require.NoError(t, f.admin.Del(t.Context(), f.prefix+"turns").Err())
		require.NoError(t, f.admin.Set(t.Context(), f.prefix+"turns", "text", 0).Err())
		f.add("good", "2")
		f.gets("good", "2")
		require.NoError(t, f.admin.Del(t.Context(), f.prefix+"bad").Err())
		f.add("bad", "3")
		f.gets("bad", "3")
	})
}

// Wake reads a new stream without waiting for the interval of the list, and a known one without
// waiting for the poll interval.
func TestAWakeUpOfAFamily(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		f := openFamily(t, s, func(p *redis.Plugin, o *redis.FamilyOptions) {
			settings(p).InitialPollInterval = time.Hour
			o.ListInterval, o.PollInterval = time.Hour, time.Hour
		})
		f.Wake(f.prefix + "a")
		f.has(nil, "a")
		f.add("a", "1")
		f.Wake(f.prefix + "a")
		f.gets("a", "1")
		f.add("a", "2")
		f.Wake(f.prefix + "a")
		f.gets("a", "2")
	})
}

// The streams are not on the shared server, and entries are flat fields. Acknowledged entries are
// removed.
func TestAFamilyOnAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		shared := redistest.Mini(t)
		f := openFamily(t, shared, func(p *redis.Plugin, o *redis.FamilyOptions) {
			own := redis.DefaultClientConfig()
			own.Addrs = []string{s.Addr}
			o.Server, o.Fields = p.Server(&own), true
			require.NoError(t, o.Server.Start(t.Context()))
			t.Cleanup(func() { require.NoError(t, o.Server.Stop(context.Background())) })
		})
		f.admin = s.Client(t)
		t.Cleanup(func() { f.admin.Del(context.Background(), f.prefix+"{a}", redis.MetaKey(f.prefix+"{a}")) })
		f.has(nil, "{a}")
		for range 3 {
			require.NoError(t, f.admin.XAdd(t.Context(), &goredis.XAddArgs{Stream: f.prefix + "{a}", Values: []any{"userId", "u"}}).Err())
			f.gets("{a}", `{"userId":"u"}`)
		}
		redistest.Eventually(t, "trimmed", func() bool { return f.admin.XLen(t.Context(), f.prefix+"{a}").Val() == 0 })
	})
}

func TestAFamilyRefusesMaxInFlight(t *testing.T) {
	t.Parallel()
	_, err := redis.New().Family(redis.FamilyOptions{}).Source().Open(t.Context(), pipeline.Flow{MaxInFlight: 1})
	require.ErrorContains(t, err, "MaxInFlight")
}

// An entry that a handler has when its stream leaves the list, or when the family is drained, is
// acknowledged.
func TestADrainOfAFamilyWaitsForItsHandlers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		f := openFamily(t, s, nil)
		f.has(nil, "a", "b")
		f.add("a", "1")
		first := redistest.Receive(t, f.out)
		f.add("b", "2")
		second := redistest.Receive(t, f.out)
		f.has(nil, "b")
		f.reads(1)
		drained := make(chan error, 1)
		go func() { drained <- f.sub.Drain(context.Background()) }()
		redistest.Eventually(t, "nothing is read", func() bool { return len(f.Reading()) == 0 })
		first.Ack()
		second.Ack()
		require.NoError(t, <-drained)
		for _, id := range []string{"a", "b"} {
			pending, err := f.admin.XPending(t.Context(), f.prefix+id, group).Result()
			require.NoError(t, err)
			require.Zero(t, pending.Count)
		}
	})
}

// A key that is no stream delays no other stream of a family, and is read once it is one.
func TestAFamilyWithAKeyThatIsNoStream(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		f := openFamily(t, s, nil)
		require.NoError(t, f.admin.Set(t.Context(), f.prefix+"bad", "no stream", 0).Err())
		f.add("good", "first")
		f.has(nil, "bad", "good")
		f.gets("good", "first")
		f.reads(1)
		require.NoError(t, f.admin.Del(t.Context(), f.prefix+"bad").Err())
		f.add("bad", "a stream now")
		f.gets("bad", "a stream now")
	})
}
