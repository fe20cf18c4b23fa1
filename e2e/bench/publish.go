package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

const publishers = 8

// comparePublish publishes from eight goroutines, one message and 50 messages per call.
func comparePublish(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	pairs := map[string]pair{}
	err := e.nearAndFar(func(place, addr string) error {
		for _, perCall := range []int{1, 50} {
			n, peers := s.messages/3, s.messages/3
			switch {
			case place == "far" && perCall == 1:
				n, peers = s.messages/30, s.messages/30
			case place == "far":
				peers = s.messages / 30
			}
			ours := goredis.NewClient(&goredis.Options{Addr: addr})
			publisher, err := pubsub.NewPublisher(ours, pubsub.PublisherConfig{})
			if err != nil {
				return err
			}
			rate, err := e.publishRate(ctx, publisher, perCall, n)
			if err != nil {
				return err
			}
			if err := ours.Close(); err != nil {
				return err
			}
			peer, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: goredis.NewClient(&goredis.Options{Addr: addr})}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			peerRate, err := e.publishRate(ctx, peer, perCall, peers)
			if err != nil {
				return err
			}
			pairs[fmt.Sprintf("publish-%d-%s", perCall, place)] = pair{rate, peerRate}
		}
		return nil
	})
	return pairs, err
}

// publishRate publishes about n messages, checks that the stream has them, and closes the
// publisher.
func (e *environment) publishRate(ctx context.Context, publisher message.Publisher, perCall, n int) (float64, error) {
	const stream = "publish"
	if err := e.redis.Del(ctx, stream).Err(); err != nil {
		return 0, err
	}
	calls := max(1, n/perCall/publishers)
	var callers errgroup.Group
	began := time.Now()
	for range publishers {
		callers.Go(func() error {
			for range calls {
				messages := make([]*message.Message, perCall)
				for i := range messages {
					messages[i] = message.NewMessage("u", payload())
				}
				if err := publisher.Publish(stream, messages...); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	if err := callers.Wait(); err != nil {
		return 0, err
	}
	took, sent := time.Since(began), publishers*calls*perCall
	got, err := e.redis.XLen(ctx, stream).Result()
	if err == nil && got != int64(sent) {
		err = fmt.Errorf("refused: the stream has %d entries, %d were published", got, sent)
	}
	if err != nil {
		return 0, err
	}
	return float64(sent) / took.Seconds(), publisher.Close()
}

var payload = sync.OnceValue(func() []byte { return []byte(strings.Repeat("x", payloadBytes)) }) //nolint:gochecknoglobals // a constant
