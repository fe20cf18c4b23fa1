package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The streams of a family are found by their name, where nothing of it runs, also on a server of its own.
func TestTheBacklogOfAFamily(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) { // miniredis counts what was read as waiting
		c := s.Client(t)
		prefix := redistest.Prefix(t, c)
		add := func(stream string, n int) {
			for range n {
				require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []string{"a", "b"}}).Err())
			}
		}
		a, b, other := prefix+":{a*}:in", prefix+":{b}:in", prefix+":{a*}:out"
		add(a, 3)
		add(b, 2)
		add(other, 5)
		require.NoError(t, c.Set(t.Context(), prefix+":{c}:in", "no stream", time.Minute).Err())
		require.NoError(t, c.XGroupCreate(t.Context(), a, "g", "0").Err())
		require.NoError(t, c.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{a, ">"}, Count: 1}).Err())

		own := DefaultClientConfig()
		own.Addrs = []string{s.Addr}
		for name, server := range map[string]func(*Plugin) *Server{
			"shared": func(p *Plugin) *Server { return p.Server(nil) }, "its own": func(p *Plugin) *Server { return p.Server(&own) },
		} {
			p := New()
			p.cfg.Addrs = []string{s.Addr}
			require.NoError(t, func() error {
				_, err := pipeline.NewRegistry(pipeline.Env{Instance: "test", Logger: redistest.Logger(t)}, p)
				return err
			}())
			f := p.Family(FamilyOptions{Name: prefix + ":{<id>}:in", Group: "g", Server: server(p)})
			got, err := f.Source().(operate.Measured).Backlog(t.Context())
			require.NoError(t, err, name)
			require.Equal(t, []int64{4, 1}, []int64{*got.Waiting, *got.InFlight}, name)
			require.WithinDuration(t, time.Now(), got.Oldest, 10*time.Minute)
			require.Equal(t, 2, got.Streams.Total, name)
			require.Equal(t, []string{a, b}, []string{got.Streams.Worst[0].Stream, got.Streams.Worst[1].Stream})
			require.Equal(t, []int64{2, 1}, []int64{*got.Streams.Worst[0].Waiting, *got.Streams.Worst[0].InFlight})
		}
	})
}

// searches counts the steps of searches.
type searches struct{ steps atomic.Int64 }

func (*searches) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (*searches) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

func (s *searches) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if cmd.Name() == "scan" {
			s.steps.Add(1)
		}
		return next(ctx, cmd)
	}
}

// A server with many keys is not searched with each look: what is known is measured again, and what is new is found
// later. One with few keys is searched each time.
func TestManyKeysAreNotSearchedWithEachLook(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		var count searches
		c.AddHook(&count)
		prefix := redistest.Prefix(t, c)
		add := func(stream string) {
			require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []string{"a", "b"}}).Err())
		}
		found := NewFound(prefix + ":in:<id>")
		look := func(known ...string) (waiting, steps int64) {
			before := count.steps.Load()
			b, err := found.Backlog(t.Context(), c, func(string) (string, bool) { return "g", true }, known...)
			require.NoError(t, err)
			require.Equal(t, *b.Waiting > 0, b.Streams.Total > 0, "a stream that does not exist is not counted")
			return *b.Waiting, count.steps.Load() - before
		}
		pipe := c.Pipeline()
		for i := range 4 * foundPage {
			pipe.Set(t.Context(), fmt.Sprint(prefix, ":other:", i), "x", 10*time.Minute)
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		add(prefix + ":in:1")
		began := time.Now()
		waiting, steps := look()
		require.EqualValues(t, 1, waiting)
		require.Greater(t, steps, int64(1))
		kept := min(time.Duration(steps)*time.Second, mostFound)
		require.False(t, found.until.Before(began.Add(kept)) || found.until.After(time.Now().Add(kept)), "a second for each step")

		found.until = time.Now().Add(time.Hour) // the machine may stand still
		add(prefix + ":in:1")
		add(prefix + ":in:2")
		waiting, steps = look()
		require.Equal(t, []int64{2, 0}, []int64{waiting, steps}, "what is known is measured")
		require.NoError(t, c.Set(t.Context(), prefix+":in:4", "no stream", time.Minute).Err())
		waiting, steps = look(prefix+":in:1", prefix+":in:2", prefix+":in:3", prefix+":in:4")
		require.Equal(t, []int64{3, 0}, []int64{waiting, steps}, "what the caller knows counts at once, and once")
		require.NoError(t, c.Del(t.Context(), prefix+":in:1").Err())
		waiting, steps = look()
		require.Equal(t, []int64{0, 0}, []int64{waiting, steps}, "also when it is gone")
		found.until = time.Now()
		waiting, steps = look()
		require.EqualValues(t, 1, waiting)
		require.Positive(t, steps)
		found.in = s.Client(t)
		_, steps = look()
		require.Positive(t, steps, "another client may be one of another server")
	})
}
