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

	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestAFullResultIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fullStreams
		require.False(t, f.has("1"))
		f.addStream("1", fullMemory)
		require.True(t, f.has("1"))
		require.False(t, f.has("2"))
		time.Sleep(fullMemory)
		require.False(t, f.has("1"))
		for id := range int64(3 * maxFull) {
			f.addStream(fmt.Sprint(id), time.Millisecond)
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, len(f.until), maxFull, "streams of the past are dropped")
	})
}

// A full result does not shorten the time after a call that was too slow.
func TestTheLongerTimeOfAFullStreamCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fullStreams
		f.addStream("1", slowMemory)
		f.addStream("1", fullMemory)
		time.Sleep(slowMemory - time.Millisecond)
		require.True(t, f.has("1"))
		time.Sleep(time.Millisecond)
		require.False(t, f.has("1"))
		f.addStream("1", fullMemory)
		f.addStream("1", slowMemory)
		time.Sleep(fullMemory)
		require.True(t, f.has("1"))
	})
}

// A call that waited for others sees that the stream became full meanwhile, and sends nothing.
func TestAnEnqueueThatWaitedSeesAFullStream(t *testing.T) {
	in := newInstance(t, miniServer(t), "a", newActiveSet("1"), still())
	commands := redistest.Watch(in.client)
	in.full.addStream("1", time.Hour)
	n, err := in.addBatch(t.Context(), "1", entries(0, 1))
	require.NoError(t, err)
	require.Zero(t, n)
	require.Zero(t, commands.Total())
}

func TestALargeBatchIsSplit(t *testing.T) {
	big := entry.Entry{Message: make([]byte, 600<<10)}
	es := []entry.Entry{big, big, big}
	require.Equal(t, 1, batchSize(es), "1 MiB a call")
	require.Equal(t, 1, batchSize([]entry.Entry{{Message: make([]byte, 5<<20)}}), "one always fits")
	small := entries(0, 5000)
	n := batchSize(small)
	words := 3 // group, max_len, number
	for _, e := range small[:n] {
		words += 1 + len(e.Values())
	}
	require.Less(t, words+4, 3_999, "EVALSHA, its hash, the number of keys and the key come on top")
}

func TestKeyedMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := mutexes{m: map[string]*keyLock{}}
		unlock, err := k.lock(t.Context(), "1")
		require.NoError(t, err)
		require.Nil(t, k.tryLock("1"))
		other := k.tryLock("2")
		require.NotNil(t, other, "another key is free")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = k.lock(ctx, "1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		unlock()
		again, err := k.lock(t.Context(), "1")
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
			return []Activation{{ID: fmt.Sprint(n)}}, nil
		}}
		answer := func() string {
			got, err := a.get(t.Context())
			require.NoError(t, err)
			return got[0].ID
		}
		var wg sync.WaitGroup
		wg.Go(func() { require.Equal(t, "1", answer()) })
		time.Sleep(5 * time.Millisecond)
		for range 100 {
			wg.Go(func() { require.Equal(t, "2", answer(), "the read under way started too early") })
		}
		wg.Wait()
		require.Equal(t, int64(2), reads.Load(), "a hundred share one answer")
		require.Equal(t, "3", answer())
	})
}
