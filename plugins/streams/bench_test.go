package streams

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// production has the settings of configs/profiles/production.yaml, without the idle stop.
func production() Config {
	c := DefaultConfig()
	c.PollInterval, c.MinConsumers, c.IdleTimeout = 5*time.Second, 8, time.Hour
	return c
}

// BenchmarkIdle measures the cost of idle streams. The commands are those of the server, so it
// should have no other clients.
//
//	MILLRACE_TEST_REDIS=127.0.0.1:6379 go test -run '^$' -bench Idle ./plugins/streams
func BenchmarkIdle(b *testing.B) {
	for _, n := range []int{1, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			s := newServer(b, redistest.Real(b, "redis"))
			active := newActiveSet()
			for id := range int64(n) {
				active.set(Activation{ID: fmt.Sprint(id + 1)})
			}
			in := newInstance(b, s, "a", active, production())
			in.open(b, pipeline.Flow{}, nil)
			require.Eventually(b, func() bool { return len(in.running()) == n }, 2*time.Minute, 50*time.Millisecond, "all run")
			<-time.After(15 * time.Second) // the wait after an empty read reaches the poll interval
			runtime.GC()
			b.ResetTimer()
			for range b.N {
				commands, cpu := commandsOf(b, s.client), cpuTime()
				start := time.Now()
				<-time.After(20 * time.Second)
				seconds := time.Since(start).Seconds()
				b.ReportMetric(float64(commandsOf(b, s.client)-commands)/seconds, "commands/s")
				b.ReportMetric(100*(cpuTime()-cpu).Seconds()/seconds, "%core")
			}
			b.StopTimer()
			b.ReportMetric(float64(residentBytes(b))/(1<<20), "MB")
			b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
			in.close()
		})
	}
}

// BenchmarkWake measures the time from an enqueue by one instance to the handler of another one.
// Its stream is idle.
func BenchmarkWake(b *testing.B) {
	s := newServer(b, redistest.Real(b, "redis"))
	const streams, entries = 100, 300
	active := newActiveSet()
	for id := range int64(streams) {
		active.set(Activation{ID: fmt.Sprint(id + 1)})
	}
	in, other := newInstance(b, s, "a", active, production()), newInstance(b, s, "b", active, production())
	handled := make(chan struct{}, 1)
	in.open(b, pipeline.Flow{}, func(*message.Message) error { handled <- struct{}{}; return nil })
	require.Eventually(b, func() bool { return len(in.running()) == streams }, 2*time.Minute, 50*time.Millisecond, "all run")
	<-time.After(15 * time.Second)
	b.ResetTimer()
	var took []time.Duration
	for i := range entries * b.N {
		<-time.After(time.Duration(i%17) * 10 * time.Millisecond)
		start := time.Now()
		_, err := other.Enqueue(context.Background(), fmt.Sprint(i%streams+1), newEntry(strconv.Itoa(i)))
		require.NoError(b, err)
		<-handled
		took = append(took, time.Since(start))
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), "p99-ms")
	in.close()
}

// commandsOf returns the number of commands that the server has run, those of scripts included.
func commandsOf(b *testing.B, c redis.UniversalClient) (n int64) {
	b.Helper()
	info, err := c.Info(context.Background(), "commandstats").Result()
	require.NoError(b, err)
	for line := range strings.Lines(info) {
		if _, rest, ok := strings.Cut(line, ":calls="); ok {
			calls, _, _ := strings.Cut(rest, ",")
			one, err := strconv.ParseInt(calls, 10, 64)
			require.NoError(b, err)
			n += one
		}
	}
	return n
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func residentBytes(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(b, err)
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	require.NoError(b, err)
	return pages * int64(os.Getpagesize())
}
