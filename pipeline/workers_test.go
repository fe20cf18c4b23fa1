package pipeline

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWorkerPoolGivesEveryCallerItsOwnResult(t *testing.T) {
	t.Parallel()
	c := workerPool{log: slog.New(slog.DiscardHandler)}
	var wg sync.WaitGroup
	var ran atomic.Int64
	for i := range 2_000 {
		wg.Go(func() {
			want := errors.New("mine")
			if i%2 == 0 {
				want = nil
			}
			if got := c.do(func() error { ran.Add(1); return want }); got != want { //nolint:errorlint // the very value
				t.Errorf("call %d: got %v, want %v", i, got, want)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 2_000, ran.Load())
	c.end() // TestMain checks that no goroutine is left
}

func TestWorkerPoolNeverWaitsForAnotherCall(t *testing.T) {
	t.Parallel()
	c := workerPool{log: slog.New(slog.DiscardHandler)}
	stuck, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = c.do(func() error { close(stuck); <-release; return nil })
	})
	<-stuck
	for range 10 {
		require.NoError(t, c.do(func() error { return nil }))
	}
	c.end()
	require.NoError(t, c.do(func() error { return nil }), "a call that comes late is carried out too")
	close(release)
	wg.Wait()
}

// Whatever a call does to its goroutine, it is answered, and the next one finds a goroutine that
// works.
func TestWorkerPoolAnswersHoweverACallEnds(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	c := workerPool{log: slog.New(slog.NewTextHandler(&log, nil))}
	err := c.do(func() error { panic("ouch") })
	require.ErrorContains(t, err, "panic outside of the handler: ouch")
	require.Contains(t, log.String(), "workers_test.go", "with its stack")
	require.ErrorIs(t, c.do(func() error { runtime.Goexit(); return nil }), ErrGoexit)
	require.Empty(t, c.idle, "it is gone")
	require.NoError(t, c.do(func() error { return nil }))
	c.end()
}

// Goroutines are kept and used again: one after the other needs one, and after the end none is
// left.
func TestWorkerPoolKeepsItsGoroutines(t *testing.T) {
	t.Parallel()
	c := workerPool{log: slog.New(slog.DiscardHandler)}
	for range 10 {
		require.NoError(t, c.do(func() error { return nil }))
		require.Len(t, c.idle, 1, "the one that worked is kept, and no other was made")
	}
	c.end()
	require.NoError(t, c.do(func() error { return nil }))
	require.Empty(t, c.idle, "nothing is kept after the end")
}

// Deep frames on a fresh goroutine grow its stack every time; a kept one has grown.
func BenchmarkWorkerPool(b *testing.B) {
	work := func() error { deep(40, [256]byte{}); return nil }
	b.Run("pool", func(b *testing.B) {
		b.ReportAllocs()
		c := workerPool{log: slog.New(slog.DiscardHandler)}
		defer c.end()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				done := make(chan struct{})
				go func() { _ = c.do(work); close(done) }()
				<-done
			}
		})
	})
	b.Run("goroutine", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				done := make(chan struct{})
				go func() { _ = work(); close(done) }()
				<-done
			}
		})
	})
}

//go:noinline
func deep(n int, frame [256]byte) byte {
	if n == 0 {
		return frame[3]
	}
	frame[n] = byte(n)
	return deep(n-1, frame) + frame[1]
}
