package streams

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/plugins/redis/entry"
)

func TestConcurrentCallersShareOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newBatcher()
		var calls atomic.Int64
		var sizes []int
		call := func(_ context.Context, _ int64, es []entry.Entry) (int, error) {
			calls.Add(1)
			sizes = append(sizes, len(es))
			time.Sleep(time.Millisecond)
			return len(es), nil
		}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				added, err := l.do(t.Context(), 1, newEntry(fmt.Sprint(i)), call)
				require.NoError(t, err)
				require.True(t, added)
			})
		}
		wg.Wait()
		require.LessOrEqual(t, calls.Load(), int64(3), "sizes %v", sizes)
		require.Empty(t, l.m, "a lane that is done leaves nothing behind")
	})
}

func TestAFullResultIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newBatcher()
		calls, room := 0, 1
		call := func(_ context.Context, _ int64, es []entry.Entry) (int, error) {
			calls++
			n := min(room, len(es))
			room -= n
			return n, nil
		}
		add := func(id int64) bool {
			added, err := l.do(t.Context(), id, newEntry("x"), call)
			require.NoError(t, err)
			return added
		}
		require.True(t, add(1))
		require.False(t, add(1))
		require.Equal(t, 2, calls)
		room = 10
		require.False(t, add(1), "a full stream is not tried again at once")
		require.Equal(t, 2, calls)
		require.True(t, add(2), "another stream is")
		time.Sleep(fullMemory)
		require.True(t, add(1))
		require.Empty(t, l.m)
	})
}

func TestALargeBatchIsSplit(t *testing.T) {
	big := entry.Entry{Message: make([]byte, 600<<10)}
	es := []entry.Entry{big, big, big}
	require.Equal(t, 1, batchSize(3, func(i int) *entry.Entry { return &es[i] }), "1 MiB a call")
	require.Equal(t, 1, batchSize(1, func(int) *entry.Entry { return &entry.Entry{Message: make([]byte, 5<<20)} }), "one always fits")
	small := entries(0, 5000)
	n := batchSize(5000, func(i int) *entry.Entry { return &small[i] })
	words := 3 // group, max_len, number
	for _, e := range small[:n] {
		words += 1 + len(e.Values())
	}
	require.Less(t, words+4, 3_999, "EVALSHA, its hash, the number of keys and the key come on top")
}

// Callers start, return and fail in any order. Each gets its own answer, in the order of the calls.
// No caller waits forever, and no state is left.
func TestBatcherUnderRandomCancellation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type caller struct {
			at, patience time.Duration
		}
		callers := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) caller {
			return caller{
				time.Duration(rapid.IntRange(0, 10).Draw(rt, "at")) * time.Millisecond,
				time.Duration(rapid.IntRange(0, 10).Draw(rt, "patience")) * time.Millisecond,
			}
		}), 1, 20).Draw(rt, "callers")
		takes := rapid.SliceOfN(rapid.IntRange(0, 6), 1, 30).Draw(rt, "takes")
		fails := rapid.SliceOfN(rapid.Bool(), 1, 30).Draw(rt, "fails")
		synctest.Test(t, func(t *testing.T) {
			l := newBatcher()
			var calls int
			in := map[string]bool{}
			running := false
			call := func(ctx context.Context, _ int64, es []entry.Entry) (int, error) {
				require.False(t, running, "one call a stream at a time")
				running = true
				time.Sleep(time.Duration(takes[calls%len(takes)]) * time.Millisecond)
				running = false
				require.NoError(t, ctx.Err(), "the call outlives its leader")
				bad := fails[calls%len(fails)]
				calls++
				if bad {
					return 0, errInjected
				}
				for _, e := range es {
					require.False(t, in[e.Key], "added twice")
					in[e.Key] = true
				}
				return len(es), nil
			}
			var wg sync.WaitGroup
			var mu sync.Mutex
			sure := map[string]bool{}
			for i, c := range callers {
				wg.Go(func() {
					time.Sleep(c.at)
					ctx, cancel := context.WithTimeout(t.Context(), c.patience)
					defer cancel()
					key := fmt.Sprint(i)
					added, err := l.do(ctx, 1, entry.Entry{Key: key}, call)
					if err == nil && added {
						mu.Lock()
						sure[key] = true
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			for key := range sure {
				require.True(t, in[key], "the result is added, but the entry is missing")
			}
			require.Empty(t, l.m, "a lane is left behind")
		})
	})
}

func TestKeyedMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := mutexes{m: map[int64]*keyLock{}}
		unlock, err := k.lock(t.Context(), 1)
		require.NoError(t, err)
		require.Nil(t, k.tryLock(1))
		other := k.tryLock(2)
		require.NotNil(t, other, "another key is free")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = k.lock(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		unlock()
		again, err := k.lock(t.Context(), 1)
		require.NoError(t, err)
		again()
		other()
		require.Empty(t, k.m)
	})
}

func TestTheActiveSetIsReadAfterTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		a := activeCache{lock: make(chan struct{}, 1), read: func(context.Context) ([]Activation, error) {
			n := reads.Add(1)
			time.Sleep(10 * time.Millisecond)
			return []Activation{{ID: n}}, nil
		}}
		answer := func() int64 {
			got, err := a.get(t.Context())
			require.NoError(t, err)
			return got[0].ID
		}
		var wg sync.WaitGroup
		wg.Go(func() { require.Equal(t, int64(1), answer()) })
		time.Sleep(5 * time.Millisecond)
		for range 100 {
			wg.Go(func() { require.Equal(t, int64(2), answer(), "the read under way started too early") })
		}
		wg.Wait()
		require.Equal(t, int64(2), reads.Load(), "a hundred share one answer")
		require.Equal(t, int64(3), answer())
	})
}
