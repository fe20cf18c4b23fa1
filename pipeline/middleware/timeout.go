package middleware

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// stepTimeout is the step timeout: the handler's context has the time limit, which does not bound the
// publishing after it.
func (w *route) stepTimeout(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	if w.limit <= 0 {
		return next(msg)
	}
	outer := msg.Context()
	ctx, cancel := context.WithTimeout(outer, w.limit)
	defer cancel()
	msg.SetContext(ctx)
	defer msg.SetContext(outer)
	return next(msg)
}

// stepHold is the step hold: a message whose middlewares, handler or publish take longer than the
// longest hold is reported. They run on the message's own goroutine, so one that never returns keeps
// its slot.
func (w *route) stepHold(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	if w.hold <= 0 {
		return next(msg)
	}
	from := msg.Context()
	returned := w.stuck.watch(w, func() pipeline.Origin { return pipeline.DeliveryFrom(from).Origin }, nil)
	defer returned()
	return next(msg)
}

// stuckWatch counts handlers over their longest hold and fails the process when there are too many.
type stuckWatch struct {
	log   *slog.Logger
	limit int // of handlers over their longest hold
	fail  func(error)

	mu  sync.Mutex
	now int
}

func newStuckWatch(log *slog.Logger, limit int, fail func(error)) *stuckWatch {
	return &stuckWatch{log: log, limit: limit, fail: fail}
}

// watch reports work that takes longer than the longest hold, with the message that it is at then. It
// calls stuck, which may be nil. The caller calls the result when the work has returned.
func (s *stuckWatch) watch(w *route, at func() pipeline.Origin, stuck func()) (returned func()) {
	timer := time.AfterFunc(w.hold, func() {
		o := at()
		w.metrics.stuck.Inc()
		n := s.add(1)
		s.log.Error("handler does not return", slog.String(logs.Route, w.Name), slog.String(logs.Origin, o.String()),
			slog.Duration("longest_hold", w.hold), slog.Int("stuck", n))
		if n >= s.limit {
			s.fail(fmt.Errorf("%d handlers have not returned within their longest hold, the last one on route %s with %s", n, w.Name, o))
		}
		if stuck != nil {
			stuck()
		}
	})
	return func() {
		if !timer.Stop() {
			w.metrics.stuck.Dec()
			s.add(-1)
		}
	}
}

func (s *stuckWatch) add(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += n
	return s.now
}
