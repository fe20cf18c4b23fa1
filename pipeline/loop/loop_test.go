package loop_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/loop"
)

func TestGroupRunFromStartToStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		starting, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		var l loop.Group
		calls := 0
		require.NoError(t, l.Start(starting, func(ctx context.Context) {
			require.Equal(t, "value", ctx.Value(key{}))
			loop.Every(ctx, time.Second, func(context.Context) { calls++ })
		}))
		cancel() // bounds the start only
		time.Sleep(3500 * time.Millisecond)
		require.NoError(t, l.Stop(t.Context()))
		require.Equal(t, 3, calls)
		require.NoError(t, l.Stop(t.Context()), "a second stop is no error")
		require.ErrorIs(t, l.Start(t.Context()), loop.ErrStarted)
	})
}

func TestGroupStopBeforeStart(t *testing.T) {
	t.Parallel()
	var l loop.Group
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, l.Stop(ctx))
	require.ErrorIs(t, l.Start(t.Context(), func(context.Context) { t.Error("runs") }), loop.ErrStarted)
}

func TestGroupStopIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l loop.Group
		release := make(chan struct{})
		require.NoError(t, l.Start(t.Context(), func(context.Context) { <-release }))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, l.Stop(ctx), context.DeadlineExceeded)
		close(release)
		require.NoError(t, l.Stop(t.Context()), "a later stop waits again")
	})
}

// Concurrent starts and stops: at most one start succeeds, and no loop runs after a stop that
// returned nil.
func TestGroupUnderConcurrentStartsAndStops(t *testing.T) {
	t.Parallel()
	for range 500 {
		var l loop.Group
		var started, running atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				loop := func(ctx context.Context) {
					running.Add(1)
					<-ctx.Done()
					running.Add(-1)
				}
				if l.Start(t.Context(), loop, loop) == nil {
					started.Add(1)
				}
			})
			wg.Go(func() {
				if err := l.Stop(t.Context()); err != nil {
					t.Error(err)
				}
				if n := running.Load(); n != 0 {
					t.Errorf("%d loops run after Stop", n)
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(t, started.Load(), int64(1))
	}
}

func TestRepeatWaitsAsLongAsItsFunctionSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		var at []time.Duration
		loop.Repeat(ctx, time.Second, func(context.Context) time.Duration {
			at = append(at, time.Since(begin))
			return time.Duration(len(at)) * 2 * time.Second
		})
		require.Equal(t, []time.Duration{time.Second, 3 * time.Second, 7 * time.Second}, at)
	})
}

func TestSleepEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		require.True(t, loop.Sleep(t.Context(), time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		require.False(t, loop.Sleep(ctx, time.Hour))
		require.Equal(t, time.Second, time.Since(begin))
	})
}
