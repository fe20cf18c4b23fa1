package console

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func testPace() pace {
	return pace{wait: 500 * time.Millisecond, run: 5 * time.Second, fresh: time.Second}
}

// After an action nobody sees what was read before it, also when the read ends after it.
func TestLoadsAreRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLoads(maxLoads)
		var state, runs atomic.Int64
		slow := false
		do := func(context.Context) (any, error) {
			runs.Add(1)
			n := state.Load()
			if slow {
				time.Sleep(100 * time.Millisecond)
			}
			return n, nil
		}
		get := func() any {
			r, late := l.get(t.Context(), "panel", testPace(), do)
			require.False(t, late)
			return r.value
		}
		require.EqualValues(t, 0, get())
		state.Store(1)
		require.EqualValues(t, 0, get(), "it is fresh")
		l.renew()
		require.EqualValues(t, 1, get())

		slow = true
		l.renew()
		before := make(chan any)
		go func() { before <- get() }()
		synctest.Wait()
		state.Store(2)
		l.renew()
		require.EqualValues(t, 2, get(), "what began before the action is read again")
		require.EqualValues(t, 1, <-before)
		require.EqualValues(t, 4, runs.Load())
		require.NoError(t, l.stop(t.Context()))
	})
}

func TestEqualLoadsRunOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLoads(maxLoads)
		runs := 0
		do := func(context.Context) (any, error) {
			runs++
			time.Sleep(100 * time.Millisecond)
			return runs, nil
		}
		values := make(chan any, 50)
		for range cap(values) {
			go func() {
				r, late := l.get(t.Context(), "panel", testPace(), do)
				if late {
					r.value = "late"
				}
				values <- r.value
			}()
		}
		for range cap(values) {
			require.Equal(t, 1, <-values)
		}
		time.Sleep(time.Minute)
		require.Equal(t, 1, runs, "nobody looks, so nothing is read")
		r, late := l.get(t.Context(), "panel", testPace(), do)
		require.False(t, late)
		require.Equal(t, 2, r.value, "the old value is not fresh any more")
		require.NoError(t, l.stop(t.Context()))
	})
}

func TestALoadThatHangsIsStartedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLoads(maxLoads)
		end := make(chan struct{})
		var runs atomic.Int32
		do := func(context.Context) (any, error) { // it does not look at its context
			runs.Add(1)
			<-end
			return "value", nil
		}
		for range 3 {
			began := time.Now()
			r, late := l.get(t.Context(), "panel", testPace(), do)
			require.True(t, late)
			require.Nil(t, r.value)
			require.Equal(t, testPace().wait, time.Since(began))
			time.Sleep(time.Minute)
		}
		require.EqualValues(t, 1, runs.Load())
		close(end)
		synctest.Wait()
		r, late := l.get(t.Context(), "panel", testPace(), do)
		require.False(t, late)
		require.Equal(t, "value", r.value)
		require.NoError(t, l.stop(t.Context()))
	})
}

func TestALateLoadShowsItsLastValue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLoads(maxLoads)
		took := time.Duration(0)
		do := func(ctx context.Context) (any, error) {
			select {
			case <-time.After(took):
				return "first", nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		read := time.Now()
		r, late := l.get(t.Context(), "panel", testPace(), do)
		require.False(t, late)
		require.Equal(t, "first", r.value)
		took = time.Hour
		time.Sleep(time.Minute)
		r, late = l.get(t.Context(), "panel", testPace(), do)
		require.True(t, late)
		require.Equal(t, "first", r.value)
		require.Equal(t, read, r.at, "the age of the value is known")
		time.Sleep(testPace().run)
		r, late = l.get(t.Context(), "panel", testPace(), do)
		require.False(t, late, "the run has ended with its context, and its result is fresh")
		require.ErrorContains(t, r.err, "no answer within 5s")
		require.NoError(t, l.stop(t.Context()))
		_, again := l.get(t.Context(), "other", testPace(), do)
		require.False(t, again)
	})
}

func TestAPanicIsAnError(t *testing.T) {
	t.Parallel()
	l := newLoads(maxLoads)
	r, _ := l.get(t.Context(), "panel", pace{wait: time.Minute, run: time.Minute}, func(context.Context) (any, error) { panic("nil client") })
	require.ErrorContains(t, r.err, "nil client")
	require.NoError(t, l.stop(t.Context()))
	r, _ = l.get(t.Context(), "panel", testPace(), nil)
	require.ErrorIs(t, r.err, errStopped)
}

// Anybody may ask for any input, so neither results nor loads that hang grow without end.
func TestLoadsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLoads(maxLoads)
		quick := func(context.Context) (any, error) { return nil, errors.New("none") }
		for i := range 10 * maxLoads {
			l.get(t.Context(), fmt.Sprint(i), testPace(), quick)
		}
		require.Len(t, l.byKey, maxLoads)
		end := make(chan struct{})
		hang := func(context.Context) (any, error) { <-end; return nil, nil }
		short := pace{run: time.Second}
		for i := range maxLoads {
			l.get(t.Context(), fmt.Sprint("hangs ", i), short, hang)
		}
		r, _ := l.get(t.Context(), "one more", testPace(), quick)
		require.ErrorIs(t, r.err, errBusy)
		stopped, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorContains(t, l.stop(stopped), "still being read")
		close(end)
		synctest.Wait()
		require.NoError(t, l.stop(t.Context()))
	})
}
