package promotion

import (
	"context"
	"log/slog"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/streams"
)

// streamRedis is the Redis of the streams: the shared one, or one of its own, which it opens and
// closes.
type streamRedis struct {
	shared *redis.Plugin
	config *redis.ClientConfig // nil: shared
	log    *slog.Logger
	own    atomic.Pointer[goredis.UniversalClient]
}

// Client returns the client. It is valid after Start. The caller does not close it.
func (s *streamRedis) Client() goredis.UniversalClient {
	if s.config == nil {
		return s.shared.Client()
	}
	if c := s.own.Load(); c != nil {
		return *c
	}
	return nil
}

// keys returns keys on which the user must have all rights. No promotion has them; all promotions
// of a type share the wake-up stream.
func (s *streamRedis) keys() (keys []string) {
	for _, t := range promotiontype.All() {
		stream := t.StreamPrefix() + "0"
		keys = append(keys, stream, streams.MetaKey(stream), streams.Kind{StreamPrefix: t.StreamPrefix()}.WakeKey())
	}
	return keys
}

// Start opens the own client, waits for the server and checks the rights of the user.
func (s *streamRedis) Start(ctx context.Context) error {
	if s.config == nil {
		return redis.CheckRights(ctx, s.shared.Client(), s.keys()...)
	}
	c, err := redis.Open(ctx, *s.config, s.log, s.keys()...)
	if err == nil {
		s.own.Store(&c)
	}
	return err
}

func (s *streamRedis) Stop(context.Context) error {
	if c := s.own.Load(); c != nil {
		return (*c).Close()
	}
	return nil
}

// streamsClient returns a client of the streams' server for a command: a client of its own in any
// case.
func (p *Plugin) streamsClient(log *slog.Logger) *streamRedis {
	client := &streamRedis{config: p.config.Stream.Redis, log: log}
	if client.config == nil {
		client.config = &p.redis.Settings().(*redis.Config).ClientConfig
	}
	return client
}
