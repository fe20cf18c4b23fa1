package redisstream

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Kind is the kind of this package's endpoints.
const Kind = "watermill-redisstream"

// NewSink returns a Sink that publishes to a stream in watermill-redisstream's own format, with one
// XADD per message through the client of the plugin "redis". It never blocks in Redis, and it never
// trims: that could remove entries which nobody has read.
func NewSink(server *redis.Plugin, stream string) pipeline.Sink {
	return sink{server, pipeline.Endpoint{Kind: Kind, Name: stream}}
}

type sink struct {
	redis *redis.Plugin
	at    pipeline.Endpoint
}

// Describe returns the stream.
func (s sink) Describe() pipeline.Endpoint { return s.at }

// Publish returns when all messages are in the stream. After a failure, the messages before it are
// in the stream.
func (s sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	c := s.redis.Client()
	if c == nil {
		return fmt.Errorf("publish to %s: the redis service has not been started", s.at)
	}
	// What the library would log it returns, too. It is not closed, because that closes the client.
	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: c}, watermill.NopLogger{})
	if err != nil {
		return fmt.Errorf("publish to %s: %w", s.at, err)
	}
	out := make([]*message.Message, len(msgs))
	for i, m := range msgs {
		out[i] = m.Copy() // the library uses the context of the message
		out[i].SetContext(ctx)
		pipeline.InjectTrace(ctx, out[i].Metadata)
	}
	if err := pub.Publish(s.at.Name, out...); err != nil {
		return fmt.Errorf("publish to %s: %w", s.at, err)
	}
	return nil
}
