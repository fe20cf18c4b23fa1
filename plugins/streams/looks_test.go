package streams

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// sent counts what a client sends, by name; a pipeline is one more.
type sent struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *sent) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n[name]++
}

// take returns what was sent since the last call.
func (s *sent) take() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.n
	s.n = map[string]int{}
	return n
}

func (*sent) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (s *sent) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		s.add(cmd.Name())
		return next(ctx, cmd)
	}
}

func (s *sent) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		s.add("pipeline")
		for _, cmd := range cmds {
			s.add(cmd.Name())
		}
		return next(ctx, cmds)
	}
}

// Kinds that share a Found cost one search where Redis has many keys, and a stream that has become active counts
// before the next one.
func TestKindsShareASearch(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, one redistest.Server) { // miniredis counts what was read as waiting
		s := newServer(t, one)
		pipe := s.client.Pipeline()
		for i := range 5000 { // more than a search looks at with one command
			pipe.Set(t.Context(), fmt.Sprint(s.prefix, ":other:", i), "x", 10*time.Minute)
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		count := sent{n: map[string]int{}}
		s.client.AddHook(&count)
		found := redis.NewFound(s.prefix + ":<kind and id>")
		kind := func(name string, active *activeSet) *Manager {
			return NewManager(Options{
				Kind: Kind{Type: name, StreamPrefix: s.prefix + ":" + name + ":", GroupPrefix: s.prefix + "-group:" + name + ":"}, Config: still,
				Client: func() goredis.UniversalClient { return s.client }, Found: found, Activations: active, Instance: name,
			})
		}
		active := newActiveSet("1")
		points, vouchers := kind("POINT", active), kind("VOUCHER", newActiveSet("1"))
		backlog := func(m *Manager) (streams int, waiting int64) {
			b, err := m.Source().(operate.Measured).Backlog(t.Context())
			require.NoError(t, err)
			return b.Streams.Total, *b.Waiting
		}
		enqueue(t, points, "1", 0, 2)
		enqueue(t, vouchers, "1", 0, 3)
		count.take()
		began := time.Now()
		streams, waiting := backlog(points)
		require.Equal(t, []int64{1, 2}, []int64{int64(streams), waiting})
		steps := count.take()["scan"]
		require.Greater(t, steps, 1)
		streams, waiting = backlog(vouchers)
		require.Equal(t, []int64{1, 3}, []int64{int64(streams), waiting})
		if time.Since(began) < time.Duration(steps)*time.Second { // the machine may stand still
			require.Zero(t, count.take()["scan"], "the same search has found them")
		}

		active.set(Activation{ID: "2"}) // and 3, which has no stream yet
		active.set(Activation{ID: "3"})
		enqueue(t, points, "2", 0, 5)
		_, err = points.active.get(t.Context()) // as each round of the control loop does
		require.NoError(t, err)
		streams, waiting = backlog(points)
		require.Equal(t, []int64{2, 7}, []int64{int64(streams), waiting})
	})
}

// What instances say about many streams costs a round trip and one command for each stream. One that can't be read
// takes away only its own.
func TestStatusesOfManyStreamsCostOneRoundTrip(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		in := newInstance(t, s, "a", newActiveSet("1", "2"), still())
		enqueue(t, in.Manager, "1", 0, 1)
		enqueue(t, in.Manager, "2", 0, 1)
		in.open(t, pipeline.Flow{}, nil)
		look := func(id string) []InstanceStatus {
			got, _, err := in.Look(t.Context(), id)
			require.NoError(t, err)
			return got
		}
		redistest.Eventually(t, "both are read", func() bool { return len(look("1")) == 1 && len(look("2")) == 1 })

		other := newInstance(t, s, "b", newActiveSet(), still()) // sends nothing by itself
		count := sent{n: map[string]int{}}
		other.client.AddHook(&count)
		require.NoError(t, s.client.Set(t.Context(), MetaKey(in.opts.Kind.Stream("4")), "no hash", time.Minute).Err())
		got, err := other.Statuses(t.Context(), "1", "2", "3", "4")
		require.ErrorIs(t, err, ErrRefused)
		commands := count.take()
		delete(commands, "hello") // of a new connection
		require.Equal(t, map[string]int{"pipeline": 1, "time": 1, "hgetall": 4}, commands)
		require.Len(t, got, 3)
		require.Equal(t, "a", got["1"][0].Instance)
		require.Equal(t, in.opts.Kind.Stream("2"), got["2"][0].Stream)
		require.Empty(t, got["3"])

		none, err := other.Statuses(t.Context())
		require.NoError(t, err)
		require.Empty(t, none)
		require.Empty(t, count.take())
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = other.Statuses(ended, "1")
		require.ErrorIs(t, err, context.Canceled)
	})
}
