package redispoll_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redispoll"
)

// Both libraries in one run on one server: only the comparison means anything.
//
//	MILLRACE_TEST_REDIS=127.0.0.1:6379 go test -run '^$' -bench . ./plugins/redispoll

func benchServer(b *testing.B) server {
	b.Helper()
	addr := os.Getenv("MILLRACE_TEST_REDIS")
	if addr == "" {
		b.Skip("MILLRACE_TEST_REDIS is not set: `make test` sets it, or give the host:port of a server")
	}
	return server{addr: addr}
}

// fill puts n entries into stream, in the format of watermill-redisstream, which both can read.
func fill(b *testing.B, c redis.UniversalClient, stream string, n int) {
	b.Helper()
	ctx := context.Background()
	for n > 0 {
		pipe := c.Pipeline()
		for range min(n, 1000) {
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []any{redisstream.UUIDHeaderKey, "u", "metadata", "", "payload", "some payload of ordinary length"}})
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
	s := benchServer(b)
	for _, slots := range []int{1, 32} {
		b.Run(fmt.Sprintf("redispoll/slots=%d", slots), func(b *testing.B) {
			c := s.client(b)
			stream := s.stream(b, c)
			fill(b, c, stream, b.N)
			sub, err := redispoll.NewSubscriber(c, redispoll.SubscriberConfig{Group: group, ReaderConfig: redispoll.ReaderConfig{Slots: slots, Batch: 100}})
			require.NoError(b, err)
			consume(b, sub, stream)
		})
	}
	b.Run("watermill-redisstream", func(b *testing.B) {
		c := s.client(b)
		stream := s.stream(b, c)
		fill(b, c, stream, b.N)
		own, err := redispoll.NewClient(clientConfig(s)) // its Close closes the client
		require.NoError(b, err)
		sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{Client: own, ConsumerGroup: group, DisableIndefiniteInitialBlock: true}, watermill.NopLogger{})
		require.NoError(b, err)
		consume(b, sub, stream)
	})
}

func clientConfig(s server) redispoll.ClientConfig {
	cfg := redispoll.DefaultClientConfig()
	cfg.Addrs = []string{s.addr}
	return cfg
}

func BenchmarkPublish(b *testing.B) {
	s := benchServer(b)
	const callers = 64
	run := func(b *testing.B, c redis.UniversalClient, pub message.Publisher) {
		b.Helper()
		stream := s.stream(b, c)
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
	b.Run("redispoll", func(b *testing.B) {
		c := s.client(b)
		pub, err := redispoll.NewPublisher(c, redispoll.PublisherConfig{})
		require.NoError(b, err)
		run(b, c, pub)
	})
	b.Run("watermill-redisstream", func(b *testing.B) {
		own, err := redispoll.NewClient(clientConfig(s))
		require.NoError(b, err)
		pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: own}, watermill.NopLogger{})
		require.NoError(b, err)
		run(b, s.client(b), pub)
	})
}
