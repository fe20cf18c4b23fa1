package streams

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Promise 7: an idle stream costs at most one XREADGROUP per poll interval and instance, with any
// number of slots. No blocking command is sent.
func TestIdleCostsOneReadAPollInterval(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := still()
		c.PollInterval = 100 * time.Millisecond
		active := newActiveSet()
		active.set(Activation{ID: "1", TotalCount: 1_000_000})
		in := newInstance(t, s, "a", active, c)
		var reads, blocking atomic.Int64
		h := &hook{}
		in.client.AddHook(h)
		in.open(t, pipeline.Flow{}, nil)
		enqueue(t, in.Manager, "1", 0, 10)
		redistest.Eventually(t, "handled", func() bool { return len(in.done()) == 10 })
		count := func(cmd redis.Cmder) error {
			if strings.EqualFold(cmd.Name(), "xreadgroup") {
				reads.Add(1)
			}
			for _, a := range cmd.Args() {
				if text, ok := a.(string); ok && strings.EqualFold(text, "block") {
					blocking.Add(1)
				}
			}
			return nil
		}
		h.set(count, nil)
		redistest.Eventually(t, "the back-off reaches its end", func() bool { return reads.Load() >= 12 }) // 1 ms doubled to 100 ms
		reads.Store(0)
		begin := time.Now()
		<-time.After(1500 * time.Millisecond)
		n := reads.Load()
		require.LessOrEqual(t, n, int64(time.Since(begin)/c.PollInterval)+1)
		require.Positive(t, reads.Load())
		require.Zero(t, blocking.Load())
	})
}

// A thousand streams: started in a moment, and cheap while nothing happens.
func TestAThousandStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("measures what a thousand streams cost")
	}
	eachServer(t, func(t *testing.T, s server) {
		n := 1000
		if s.Name == "miniredis" {
			n = 200 // its Lua is interpreted by an interpreter that is made again for every call
		}
		c := DefaultConfig()
		c.PollInterval, c.IdleTimeout = 5*time.Second, time.Hour
		active := newActiveSet()
		for id := range int64(n) {
			active.set(Activation{ID: fmt.Sprint(id + 1)})
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		in := newInstance(t, s, "a", active, c)
		begin := time.Now()
		in.open(t, pipeline.Flow{}, nil)
		require.Eventually(t, func() bool { return len(in.running()) == n }, 2*time.Minute, 5*time.Millisecond, "all run")
		t.Logf("%d streams started in %s", n, time.Since(begin))
		added := time.Now()
		var wg sync.WaitGroup
		for g := range int64(20) {
			wg.Go(func() {
				for id := g; id < int64(n); id += 20 {
					if _, err := in.Enqueue(context.Background(), fmt.Sprint(id+1), newEntry(fmt.Sprint(id))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Eventually(t, func() bool { return len(in.done()) == n }, 2*time.Minute, 5*time.Millisecond, "all handled")
		t.Logf("one message each, handled in %s", time.Since(added))
		runtime.GC()
		runtime.ReadMemStats(&after)
		perStream := (int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)) / int64(n)
		t.Logf("%d bytes and %d goroutines a stream", perStream, runtime.NumGoroutine()/n)
		require.Less(t, perStream, int64(100<<10))
		start := time.Now()
		in.close()
		t.Logf("drained in %s", time.Since(start))
		require.Less(t, time.Since(start), c.StopTimeout+30*time.Second)
	})
}
