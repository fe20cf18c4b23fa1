package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/killpoint"
)

// retire stops a stream that has been drained for long enough: everywhere, when it still is. The
// lock of r.id is held.
func (s *subscription) retire(ctx context.Context, r *running) {
	switch s.m.takeOut(ctx, r.id) {
	case takenNot:
		return
	case takenUnclean:
		s.mu.Lock()
		s.cleanups[r.id] = struct{}{}
		s.mu.Unlock()
	case takenClean:
	}
	_ = s.stopLocked(ctx, r, stopIdle) // logged there
	s.m.Hint()                         // what was activated again meanwhile starts now
}

// taken is what became of the attempt to take an idle stream out of service.
type taken int

const (
	takenNot     taken = iota // it stays: not idle any more, or the active set could not be changed
	takenClean                // it is off the active set, and deleted
	takenUnclean              // it is off the active set, but the clean-up failed and is to be tried again
)

// takeOut takes an idle stream out of service for all instances: off the active set first, then one
// script deletes it if it is still drained. An entry that came between the two makes the script
// refuse, and the stream is put back (fact 23). Whoever finds it absent puts nothing back: the one
// who creates it again activates it after that (see confirm).
func (m *Manager) takeOut(ctx context.Context, id int64) taken {
	log := m.log.With(slog.String(pipeline.LogStream, m.kind.Stream(id)))
	if err := m.activations.Deactivate(ctx, id); err != nil {
		m.metrics.cleanup(m.kind.Type, "failed")
		log.WarnContext(ctx, "idle stream not taken off the active set, tried again", pipeline.Err(err))
		return takenNot
	}
	killpoint.Reach(killpoint.CleanUp)
	answer, err := m.cleanUp(ctx, id)
	if errors.Is(err, ErrForeign) {
		return takenNot // and its reader leaves it at the next visit
	}
	if err != nil {
		log.WarnContext(ctx, "clean-up failed, tried again", pipeline.Err(err))
		return takenUnclean
	}
	if answer == cleanNotDrained {
		// When that fails, the next rounds see a stream that is there and not active, and try again.
		_ = m.putBack(ctx, id) // logged there
		return takenNot
	}
	return takenClean
}

// cleanUp runs the clean-up script and counts its answer.
func (m *Manager) cleanUp(ctx context.Context, id int64) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream := m.kind.Stream(id)
	args := append(m.args(id), m.config().IdleTimeout.Milliseconds())
	answer, err := m.scripts.delete.Run(ctx, m.client(), m.keys(id), args...).Int()
	if err != nil {
		m.metrics.cleanup(m.kind.Type, "failed")
		return 0, fmt.Errorf("clean up %s: %w", stream, m.refusal(id, err))
	}
	m.metrics.cleanup(m.kind.Type, map[int]string{cleanDeleted: "deleted", cleanNotDrained: "not_drained", cleanAbsent: "absent"}[answer])
	return answer, nil
}

// putBack puts a stream that has work, or may have, back on the active set.
func (m *Manager) putBack(ctx context.Context, id int64) error {
	stream := slog.String(pipeline.LogStream, m.kind.Stream(id))
	if err := m.activations.Activate(ctx, id); err != nil {
		m.log.WarnContext(ctx, "stream not put back on the active set, tried again", stream, pipeline.Err(err))
		return err
	}
	m.metrics.putBack(m.kind.Type)
	m.log.InfoContext(ctx, "stream put back on the active set", stream)
	m.Hint()
	return nil
}

// retryCleanups runs the clean-up scripts that could not be run when their streams stopped.
func (s *subscription) retryCleanups() {
	s.mu.Lock()
	ids := make([]int64, 0, len(s.cleanups))
	for id := range s.cleanups {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.begin(id, func(ctx context.Context) { s.retryCleanup(ctx, id) })
	}
}

func (s *subscription) retryCleanup(ctx context.Context, id int64) {
	s.mu.Lock()
	_, due := s.cleanups[id]
	s.mu.Unlock()
	if !due {
		return // it was started again: the idle stop of its reader comes in time
	}
	answer, err := s.m.cleanUp(ctx, id)
	if err == nil && answer == cleanNotDrained {
		err = s.m.putBack(ctx, id)
	}
	if err != nil && !errors.Is(err, ErrForeign) {
		s.m.log.WarnContext(ctx, "clean-up failed again", slog.String(pipeline.LogStream, s.m.kind.Stream(id)), pipeline.Err(err))
		return
	}
	s.mu.Lock()
	delete(s.cleanups, id)
	s.mu.Unlock()
}
