package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// retire stops a stream that has been drained for long enough: everywhere, when it still is. The
// lock of r.id is held.
func (s *subscription) retire(ctx context.Context, r *running) {
	switch s.m.decommission(ctx, r.id) {
	case stillActive:
		return
	case decommissionedUnclean:
		s.mu.Lock()
		s.cleanups[r.id] = struct{}{}
		s.mu.Unlock()
	case decommissionedClean:
	}
	_ = s.stopLocked(ctx, r, stopIdle) // logged there
	s.m.Refresh()                      // what was activated again meanwhile starts now
}

// decommissioned is the result of decommission.
type decommissioned int

const (
	// stillActive: it is not idle any more, or the active set could not be changed.
	stillActive decommissioned = iota
	// decommissionedClean: it is removed from the active set, and deleted.
	decommissionedClean
	// decommissionedUnclean: it is removed from the active set. The clean-up failed and is retried.
	decommissionedUnclean
)

// decommission takes an idle stream out of service for all instances. It removes it from the active
// set first. Then one script deletes it if it is still drained. An entry that came between the two
// makes the script refuse, and the stream is reactivated. A missing stream is not reactivated: the
// enqueue that creates it again activates it after that (see confirm).
func (m *Manager) decommission(ctx context.Context, id string) decommissioned {
	log := m.log.With(slog.String(logs.Stream, m.opts.Kind.Stream(id)))
	if err := m.opts.Activations.Deactivate(ctx, id); err != nil {
		m.opts.Metrics.cleanup(m.opts.Kind.Type, "failed")
		log.WarnContext(ctx, "idle stream not taken off the active set, tried again", logs.Err(err))
		return stillActive
	}
	failpoint.Hit(failpoint.CleanUp)
	answer, err := m.cleanUp(ctx, id)
	if errors.Is(err, ErrForeign) {
		return stillActive // and its reader leaves it at the next visit
	}
	if err != nil {
		log.WarnContext(ctx, "clean-up failed, tried again", logs.Err(err))
		return decommissionedUnclean
	}
	if answer == cleanNotDrained {
		// When that fails, the next rounds see a stream that is there and not active, and try
		// again.
		_ = m.reactivate(ctx, id) // logged there
		return stillActive
	}
	return decommissionedClean
}

// cleanUp runs the clean-up script, counts its answer, and tells Options.Deleted.
func (m *Manager) cleanUp(ctx context.Context, id string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream := m.opts.Kind.Stream(id)
	args := append(m.args(id), m.opts.Config().IdleTimeout.Milliseconds())
	reply, err := m.scripts.delete.Run(ctx, m.opts.Client(), m.keys(id), args...).Slice()
	if err != nil {
		m.opts.Metrics.cleanup(m.opts.Kind.Type, "failed")
		return 0, fmt.Errorf("clean up %s: %w", stream, m.refusal(id, err))
	}
	n, _ := reply[0].(int64)
	answer := int(n)
	m.opts.Metrics.cleanup(m.opts.Kind.Type, map[int]string{cleanDeleted: "deleted", cleanNotDrained: "not_drained", cleanAbsent: "absent"}[answer])
	if answer == cleanDeleted && m.opts.Deleted != nil {
		incarnation, _ := reply[1].(string)
		if err := m.opts.Deleted(ctx, id, incarnation); err != nil {
			m.log.WarnContext(ctx, "the end of a stream is not noted, and may be reported as a loss", slog.String(logs.Stream, stream), logs.Err(err))
		}
	}
	return answer, nil
}

// reactivate adds a stream that has work, or may have, to the active set again.
func (m *Manager) reactivate(ctx context.Context, id string) error {
	stream := slog.String(logs.Stream, m.opts.Kind.Stream(id))
	if err := m.opts.Activations.Activate(ctx, id); err != nil {
		m.log.WarnContext(ctx, "stream not reactivated, retried", stream, logs.Err(err))
		return err
	}
	m.opts.Metrics.reactivated(m.opts.Kind.Type)
	m.log.InfoContext(ctx, "stream reactivated", stream)
	m.Refresh()
	return nil
}

// retryCleanups runs the clean-up scripts that could not be run when their streams stopped.
func (s *subscription) retryCleanups() {
	s.mu.Lock()
	ids := make([]string, 0, len(s.cleanups))
	for id := range s.cleanups {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.begin(id, func(ctx context.Context) { s.retryCleanup(ctx, id) })
	}
}

func (s *subscription) retryCleanup(ctx context.Context, id string) {
	s.mu.Lock()
	_, due := s.cleanups[id]
	s.mu.Unlock()
	if !due {
		return // it was started again: the idle stop of its reader comes in time
	}
	answer, err := s.m.cleanUp(ctx, id)
	if err == nil && answer == cleanNotDrained {
		err = s.m.reactivate(ctx, id)
	}
	if err != nil && !errors.Is(err, ErrForeign) {
		s.m.log.WarnContext(ctx, "clean-up failed again", slog.String(logs.Stream, s.m.opts.Kind.Stream(id)), logs.Err(err))
		return
	}
	s.mu.Lock()
	delete(s.cleanups, id)
	s.mu.Unlock()
}
