package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A key that is no stream concerns its own stream alone: no other, no sweep, and at most one log
// line per minute.
func TestAKeyThatIsNoStream(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1", "2")
		in := newInstance(t, s, "a", active, still())
		ctx := t.Context()
		require.NoError(t, s.client.Set(ctx, in.opts.Kind.Stream("1"), "x", 0).Err())
		require.NoError(t, s.client.Set(ctx, in.opts.Kind.Stream("3"), "x", 0).Err())
		for _, id := range []string{"1", "3"} {
			_, err := in.Enqueue(ctx, fmt.Sprint(id), newEntry("x"))
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorIs(t, in.Ensure(ctx, fmt.Sprint(id)), ErrRefused)
		}
		require.NoError(t, in.Ensure(ctx, "4"))
		require.NoError(t, s.client.Set(ctx, MetaKey(in.opts.Kind.Stream("4")), "x", 0).Err())
		require.ErrorIs(t, in.Ensure(ctx, "4"), ErrRefused, "the companion counts too")
		in.open(t, pipeline.Flow{}, nil)
		redistest.Eventually(t, "the start is tried again and again", func() bool {
			return testutil.ToFloat64(in.opts.Metrics.failures.WithLabelValues("POINT", "start")) >= 5
		})
		require.Equal(t, 1, in.log.Count("stream not started"))
		require.Equal(t, 1, in.log.Count("redis refuses a stream's key, its work waits; other streams are not affected\" kind=POINT stream="+in.opts.Kind.Stream("1")))
		require.NoError(t, in.Sweep(ctx, 0, func(_ context.Context, id string) error {
			require.NotEqual(t, "3", id, "a string is no orphan")
			return nil
		}))
		out, err := in.Enqueue(ctx, "2", newEntry("y"))
		require.NoError(t, err)
		require.Equal(t, Added, out)
		redistest.Eventually(t, "the other stream is read", func() bool { return len(in.done()) == 1 })

		require.NoError(t, s.client.Del(ctx, in.opts.Kind.Stream("1")).Err())
		redistest.Eventually(t, "the stream starts when its key is free", func() bool { return in.isRunning("1") })
	})
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestRefusalsAreAboutOneKey(t *testing.T) {
	t.Parallel()
	in := NewManager(Options{Kind: Kind{Type: "POINT"}, Activations: newActiveSet()})
	for text, refused := range map[string]bool{
		"WRONGTYPE Operation against a key holding the wrong kind of value script: 6e":     true,
		"ERR The ID specified in XADD is equal or smaller than the target stream top item": true,
		"ERR The stream has exhausted the last possible ID, unable to add more items":      true,
		"OOM command not allowed when used memory > 'maxmemory'.":                          false,
		"LOADING Redis is loading the dataset in memory":                                   false,
		"READONLY You can't write against a read only replica.":                            false,
		"CLUSTERDOWN The cluster is down":                                                  false,
		"NOPERM this user has no permissions to run the 'xadd' command":                    false,
		"MASTERDOWN Link with MASTER is down":                                              false,
		"TRYAGAIN Multiple keys request during rehashing of slot":                          false,
		"ERR something new": false,
	} {
		require.Equal(t, refused, errors.Is(in.refusal("1", reply(text)), ErrRefused), text)
	}
	require.NotErrorIs(t, in.refusal("1", errors.New("dial tcp: WRONGTYPE")), ErrRefused, "no reply")
}

// Thousands of streams with one fault have one line per minute between them.
func TestOneLineForAllStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out redistest.Lines
		m := NewManager(Options{Kind: Kind{Type: "POINT"}, Activations: newActiveSet(), Config: DefaultConfig, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		for id := range int64(1000) {
			require.Error(t, m.refusal(fmt.Sprint(id), reply("WRONGTYPE")))
		}
		require.Equal(t, 1, out.Count("redis refuses"))
		time.Sleep(time.Minute - time.Nanosecond)
		require.Error(t, m.refusal("6", reply("WRONGTYPE")))
		require.Equal(t, 1, out.Count("redis refuses"))
		time.Sleep(time.Nanosecond)
		require.Error(t, m.refusal("7", reply("WRONGTYPE")))
		require.Equal(t, 2, out.Count("redis refuses"))
		require.Equal(t, 1, out.Count("stream=7 error=WRONGTYPE times=1001"))

		var found redis.Delays
		for id := range int64(1000) {
			found.Note(m.opts.Kind.Stream(fmt.Sprint(id)), []DelayingGroup{{Group: "debug", For: time.Hour}}, time.Minute)
		}
		m.delayed(&found)
		m.delayed(&found)
		require.Equal(t, 1, out.Count("a foreign consumer group"))
		require.Equal(t, 1, out.Count("streams=1000"))
	})
}

// While the gate is closed nothing is reclaimed: the entries could not be handled here.
func TestNothingIsReclaimedWhileTheGateIsClosed(t *testing.T) {
	s := miniServer(t)
	var open atomic.Bool
	open.Store(true)
	in := newInstance(t, s, "a", newActiveSet("1"), still())
	in.open(t, pipeline.Flow{Gate: open.Load}, nil)
	redistest.Eventually(t, "it runs", func() bool { return len(in.ReclaimTarget().Streams()) == 1 })
	open.Store(false)
	require.Empty(t, in.ReclaimTarget().Streams())
	open.Store(true)
	require.Len(t, in.ReclaimTarget().Streams(), 1)
}

// A stream that is not admitted is not created, its entries are answered Full, and the question is
// not repeated for each of them.
func TestAStreamThatIsNotAdmitted(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet()
		in := newInstance(t, s, "a", active, still())
		ctx := t.Context()
		calls, admitted := 0, false
		in.opts.Admit = func(ctx context.Context, id string) (bool, error) {
			calls++
			if !admitted {
				return false, nil
			}
			return true, active.Activate(ctx, id)
		}
		for range 20 {
			out, err := in.Enqueue(ctx, "1", newEntry("x"))
			require.NoError(t, err)
			require.Equal(t, Full, out)
		}
		require.Less(t, calls, 20)
		require.Zero(t, s.client.Exists(ctx, in.opts.Kind.Stream("1"), MetaKey(in.opts.Kind.Stream("1"))).Val())
		require.False(t, active.has("1"))

		admitted = true
		redistest.Eventually(t, "added", func() bool {
			out, err := in.Enqueue(ctx, "1", newEntry("x"))
			return err == nil && out == Added
		})
		require.True(t, active.has("1"))
	})
}
