package pubsub_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/poll"
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

func BenchmarkPublish(b *testing.B) {
	s := redistest.Real(b, "redis")
	const callers = 64
	run := func(b *testing.B, c goredis.UniversalClient, pub message.Publisher) {
		b.Helper()
		stream := redistest.Stream(b, c)
		b.ReportAllocs()
		b.ResetTimer()
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for n := i; n < b.N; n += callers {
					if err := pub.Publish(stream, message.NewMessage("u", []byte("some payload of ordinary length"))); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		b.StopTimer()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
		require.NoError(b, pub.Close())
	}
	b.Run("redis", func(b *testing.B) {
		c := s.Client(b)
		pub, err := pubsub.NewPublisher(c, pubsub.PublisherConfig{})
		require.NoError(b, err)
		run(b, c, pub)
	})
	b.Run("watermill-redisstream", func(b *testing.B) {
		own := goredis.NewClient(redistest.Options(s.Addr)) // the library closes it
		pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: own}, watermill.NopLogger{})
		require.NoError(b, err)
		run(b, s.Client(b), pub)
	})
}
