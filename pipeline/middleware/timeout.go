package middleware

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// timeout bounds the handler by its context and reports one that stays beyond the longest hold. The
// handler runs on the message's own goroutine, so one that never returns keeps its slot.
func (c *Chain) timeout(r pipeline.Route, next message.HandlerFunc) message.HandlerFunc {
	hold := r.Policy.Hold()
	if hold > 0 {
		next = c.stuck.watch(r.Name, hold, next)
	}
	limit := r.Policy.TimeLimit()
	if limit == 0 {
		return next
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		outer := msg.Context()
		ctx, cancel := context.WithTimeout(outer, limit)
		defer cancel()
		msg.SetContext(ctx)
		out, err := next(msg)
		msg.SetContext(outer)
		return out, err
	}
}

// stuckWatch counts handlers over their longest hold and fails the process when there are too many.
type stuckWatch struct {
	log     *slog.Logger
	metrics *metrics
	most    int
	fail    func(error)

	mu  sync.Mutex
	now int
}

func newStuckWatch(log *slog.Logger, most int, m *metrics, fail func(error)) *stuckWatch {
	return &stuckWatch{log: log, metrics: m, most: most, fail: fail}
}

func (s *stuckWatch) watch(route string, hold time.Duration, next message.HandlerFunc) message.HandlerFunc {
	gauge := s.metrics.stuck.WithLabelValues(route)
	return func(msg *message.Message) ([]*message.Message, error) {
		o := pipeline.OriginFrom(msg.Context())
		timer := time.AfterFunc(hold, func() {
			gauge.Inc()
			n := s.add(1)
			s.log.Error("handler does not return", slog.String(pipeline.LogRoute, route), slog.String(pipeline.LogOrigin, o.String()),
				slog.Duration("longest_hold", hold), slog.Int("stuck", n))
			if n >= s.most {
				s.fail(fmt.Errorf("%d handlers have not returned within their longest hold, the last one on route %s with %s", n, route, o))
			}
		})
		defer func() {
			if !timer.Stop() {
				gauge.Dec()
				s.add(-1)
			}
		}()
		return next(msg)
	}
}

func (s *stuckWatch) add(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += n
	return s.now
}
