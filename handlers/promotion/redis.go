package promotion

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redispoll"
)

// streamRedis is the client the streams use: the shared one, or one of their own, which is opened and
// closed here and by nobody else.
type streamRedis struct {
	shared *redispoll.Plugin
	config *redispoll.ClientConfig // nil: shared
	probes []string                // keys on which the user must have all rights; they don't exist
	log    *slog.Logger
	own    atomic.Pointer[redis.UniversalClient]
}

// Client returns the client. It is valid after Start, and borrowed by everybody who asks.
func (s *streamRedis) Client() redis.UniversalClient {
	if s.config == nil {
		return s.shared.Client()
	}
	if c := s.own.Load(); c != nil {
		return *c
	}
	return nil
}

// Start opens a client of its own, if it has one, and waits for the server. The error says so when the user lacks rights.
func (s *streamRedis) Start(ctx context.Context) error {
	if s.config == nil {
		return redispoll.CheckRights(ctx, s.shared.Client(), s.probes...)
	}
	c, err := redispoll.NewClient(*s.config)
	if err != nil {
		return err
	}
	if err = redispoll.WaitFor(ctx, c, strings.Join(s.config.Addrs, ","), s.log); err == nil {
		err = redispoll.CheckEviction(ctx, c, s.log)
	}
	if err == nil {
		err = redispoll.CheckRights(ctx, c, s.probes...)
	}
	if err != nil {
		return errors.Join(err, c.Close())
	}
	s.own.Store(&c)
	return nil
}

// Stop closes the client of its own.
func (s *streamRedis) Stop(context.Context) error {
	if c := s.own.Swap(nil); c != nil {
		return (*c).Close()
	}
	return nil
}
