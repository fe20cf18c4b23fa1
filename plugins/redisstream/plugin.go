package redisstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Kind is the kind of this package's endpoints. The Origin of a message has poll.Kind.
const Kind = "watermill-redisstream"

// Plugin is the plugin "redisstream". Sinks use the client of the plugin "redis". Each Source has
// its own client with the same settings.
type Plugin struct {
	redis *redis.Plugin
	cfg   Config
	env   pipeline.Env
	opens atomic.Int64 // numbers the consumers of this instance
}

// New returns the plugin with its default settings. It opens no connection.
func New(redis *redis.Plugin) *Plugin {
	return &Plugin{redis: redis, cfg: DefaultConfig(), env: pipeline.Env{Logger: slog.New(slog.DiscardHandler)}}
}

// Name returns "redisstream".
func (p *Plugin) Name() string { return "redisstream" }

// Settings returns the plugin's *Config.
func (p *Plugin) Settings() any { return &p.cfg }

// Needs implements pipeline.Dependent.
func (p *Plugin) Needs() []string { return []string{"redis"} }

// Register keeps the environment of the process. There is no service.
func (p *Plugin) Register(r *pipeline.Registry) error {
	if p.redis == nil {
		return errors.New("redisstream needs the plugin redis")
	}
	p.env = r.Env()
	return nil
}

// Sink publishes to the stream topic in watermill-redisstream's own format, with one XADD per
// message. It never blocks in Redis.
func (p *Plugin) Sink(topic string) pipeline.Sink {
	return sink{p, pipeline.Endpoint{Kind: Kind, Name: topic}}
}

type sink struct {
	p  *Plugin
	at pipeline.Endpoint
}

// Describe returns the stream.
func (s sink) Describe() pipeline.Endpoint { return s.at }

// Publish returns when all messages are in the stream. After a failure, the messages before it are
// in the stream.
func (s sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	c := s.p.redis.Client()
	if c == nil {
		return fmt.Errorf("publish to %s: the redis service has not been started", s.at)
	}
	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: lent{c}}, s.p.logger())
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

// lent is a client that survives being closed by the library.
type lent struct{ goredis.UniversalClient }

// Close does nothing: the client's owner closes it.
func (lent) Close() error { return nil }

// logger lowers the library's log lines by a level: its errors are repaired or returned.
func (p *Plugin) logger() watermill.LoggerAdapter {
	return watermill.NewSlogLoggerWithLevelMapping(p.env.Logger, map[slog.Level]slog.Level{
		slog.LevelError: slog.LevelWarn,
		slog.LevelInfo:  slog.LevelDebug,
	})
}

var (
	_ pipeline.Plugin       = (*Plugin)(nil)
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Sink         = sink{}
	_ pipeline.Source       = source{}
	_ pipeline.Subscription = (*subscription)(nil)
	_ pipeline.Failer       = (*subscription)(nil)
)
