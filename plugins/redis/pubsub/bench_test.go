package pubsub_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Both libraries in one run on one server: only the comparison means anything.
//
//	MILLRACE_TEST_REDIS=127.0.0.1:6379 go test -run '^$' -bench . ./plugins/redis/pubsub

// fill puts n entries into stream, in the format of watermill-redisstream, which both can read.
func fill(b *testing.B, c goredis.UniversalClient, stream string, n int) {
	b.Helper()
	ctx := context.Background()
	for n > 0 {
		pipe := c.Pipeline()
		for range min(n, 1000) {
			pipe.XAdd(ctx, &goredis.XAddArgs{Stream: stream, Values: []any{redisstream.UUIDHeaderKey, "u", "metadata", "", "payload", "some payload of ordinary length"}})
		}
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		n -= 1000
	}
}

func consume(b *testing.B, sub message.Subscriber, stream string) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	out, err := sub.Subscribe(context.Background(), stream)
	require.NoError(b, err)
	for range b.N {
		(<-out).Ack()
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	require.NoError(b, sub.Close())
}

func BenchmarkSubscribe(b *testing.B) {
	s := redistest.Real(b, "redis")
	for _, concurrency := range []int{1, 32} {
		b.Run(fmt.Sprintf("redis/concurrency=%d", concurrency), func(b *testing.B) {
			c := s.Client(b)
			stream := redistest.Stream(b, c)
			fill(b, c, stream, b.N)
			sub, err := pubsub.NewSubscriber(c, pubsub.SubscriberConfig{Group: redistest.Group, Config: poll.Config{Concurrency: concurrency}})
			require.NoError(b, err)
			consume(b, sub, stream)
		})
	}
	b.Run("watermill-redisstream", func(b *testing.B) {
		c := s.Client(b)
		stream := redistest.Stream(b, c)
		fill(b, c, stream, b.N)
		own := goredis.NewClient(redistest.Options(s.Addr)) // the library closes it
		sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{Client: own, ConsumerGroup: redistest.Group, DisableIndefiniteInitialBlock: true}, watermill.NopLogger{})
		require.NoError(b, err)
		consume(b, sub, stream)
	})
}

// BenchmarkPublish has 1 to 64 callers with 1 or 50 messages per call, on a local server and behind
// a delay of about 1.3 ms. Both publishers have the same pool of connections.
func BenchmarkPublish(b *testing.B) {
	s := redistest.Real(b, "redis")
	far := redistest.NewProxy(b, s.Addr)
	far.SetDelay(time.Millisecond)
	publishers := []struct {
		name string
		open func(c goredis.UniversalClient) (message.Publisher, error)
	}{
		{"redis", func(c goredis.UniversalClient) (message.Publisher, error) {
			return pubsub.NewPublisher(c, pubsub.PublisherConfig{})
		}},
		{"watermill-redisstream", func(c goredis.UniversalClient) (message.Publisher, error) {
			return redisstream.NewPublisher(redisstream.PublisherConfig{Client: c}, watermill.NopLogger{})
		}},
	}
	for _, place := range []struct{ name, addr string }{{"local", s.Addr}, {"far", far.Addr()}} {
		for _, callers := range []int{1, 8, 64} {
			for _, each := range []int{1, 50} {
				for _, p := range publishers {
					b.Run(fmt.Sprintf("%s/callers=%d/each=%d/%s", place.name, callers, each, p.name), func(b *testing.B) {
						c := goredis.NewClient(redistest.Options(place.addr))
						defer c.Close() // the stock publisher closes it too
						pub, err := p.open(c)
						require.NoError(b, err)
						publishFrom(b, pub, redistest.Stream(b, s.Client(b)), callers, each)
						require.NoError(b, pub.Close())
					})
				}
			}
		}
	}
}

// publishFrom makes b.N calls, after some that open the connections.
func publishFrom(b *testing.B, pub message.Publisher, stream string, callers, each int) {
	b.Helper()
	publish := func(calls int) {
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for n := i; n < calls; n += callers {
					messages := make([]*message.Message, each)
					for j := range messages {
						messages[j] = message.NewMessage("u", bytes.Repeat([]byte("x"), 200))
					}
					if err := pub.Publish(stream, messages...); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	publish(20 * callers)
	b.ReportAllocs()
	cpu := cpuTime()
	b.ResetTimer()
	publish(b.N)
	b.StopTimer()
	b.ReportMetric(float64(b.N*each)/b.Elapsed().Seconds(), "msgs/s")
	b.ReportMetric((cpuTime()-cpu)*1e6/float64(b.N*each), "cpu-us/msg")
}

// cpuTime returns the CPU seconds of this process.
func cpuTime() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
