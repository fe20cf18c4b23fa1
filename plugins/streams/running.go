package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// running is one stream that has a reader in this instance. Only its state changes.
type running struct {
	id            string
	stream, group string
	consumer      string
	reader        *poll.Reader
	inFlight      *inFlightCount
	since         time.Time

	visits // of the control loop
	state  // guarded by subscription.mu
}

type state struct {
	total  int64
	slots  int
	paused bool
	missed int // rounds in a row in which the id was not on the active set but its stream was there
}

// Why a reader is stopped: a label of metrics and logs.
const (
	stopDrained  = "drained"  // the instance ends
	stopIdle     = "idle"     // drained for idle_timeout
	stopForeign  = "foreign"  // it belongs to another deployment
	stopInactive = "inactive" // off the active set, and its stream is gone
)

// startLocked starts or resizes the reader of a.ID. The caller has the lock of a.ID.
func (s *subscription) startLocked(ctx context.Context, a Activation) error {
	if err := s.Reading.Err(); err != nil {
		return err
	}
	if r := s.get(a.ID); r != nil {
		if !r.ended() {
			s.apply(r, a)
			return nil
		}
		s.remove(ctx, r, stopInactive)
	}
	if _, err := s.m.create(ctx, a.ID); err != nil {
		return err
	}
	r := s.newRunning(a)
	s.mu.Lock()
	if err := s.Reading.Err(); err != nil {
		s.mu.Unlock()
		s.m.inFlight.watch(r.stream, false)
		return err
	}
	s.running[a.ID] = r
	delete(s.cleanups, a.ID)
	s.m.opts.Metrics.started(s.m.opts.Kind.Type, r.slots)
	s.mu.Unlock()
	r.reader.Start()
	s.m.log.InfoContext(ctx, "stream started", slog.String(logs.Stream, r.stream), slog.Int("slots", r.slots))
	return nil
}

func (s *subscription) newRunning(a Activation) *running {
	m, c, d := s.m, s.m.opts.Config(), poll.DefaultConfig()
	r := &running{
		id: a.ID, stream: m.opts.Kind.Stream(a.ID), group: m.opts.Kind.Group(a.ID),
		consumer: m.opts.Instance + "-0", since: time.Now(), inFlight: m.inFlight.watch(m.opts.Kind.Stream(a.ID), true),
		state: state{total: a.TotalCount, slots: s.slots(c, a.TotalCount), paused: a.Paused},
	}
	r.reader = poll.NewReader(m.opts.Client(), poll.Options{
		Config: poll.Config{
			Concurrency: r.slots, BatchSize: c.BatchSize,
			PollInterval: c.PollInterval, InitialPollInterval: c.InitialPollInterval,
			MinIdle: c.MinIdle, LongestHold: c.LongestHold,
			MaxRedeliveries: d.MaxRedeliveries, Redelivery: d.Redelivery,
		},
		Stream: r.stream, Group: r.group, Consumer: r.consumer,
		LongestHandlerHold: longestHandlerHold(c, s.flow),
		Scheduler:          &s.polls, Gate: s.gate, Fence: m.opts.Fence, Ahead: m.opts.Ahead,
		Absent: func(ctx context.Context) (bool, error) { return s.absent(ctx, a.ID) },
	}, s.entries, m.log, m.opts.ReaderMetrics)
	if a.Paused {
		r.reader.SetPaused(true)
	}
	return r
}

// longestHandlerHold is how long an entry is kept alive for its handler: the route's longest hold,
// or the setting where that is shorter.
func longestHandlerHold(c Config, f pipeline.Flow) time.Duration {
	if c.LongestHold > 0 && f.LongestHold > 0 {
		return min(c.LongestHold, f.LongestHold)
	}
	return max(c.LongestHold, f.LongestHold)
}

// slots is the size of a stream here; a Window of the route's Flow bounds it too.
func (s *subscription) slots(c Config, total int64) int {
	n := s.m.slots(c, total)
	if s.flow.Window > 0 {
		n = min(n, s.flow.Window)
	}
	return n
}

// absent is called by a reader that finds its stream or group gone. An active stream was lost, and
// is created again. One that is not active was deleted by another instance.
func (s *subscription) absent(ctx context.Context, id string) (again bool, err error) {
	active, err := s.m.active.get(ctx)
	if err != nil {
		return false, fmt.Errorf("read the active set: %w", err)
	}
	for _, a := range active {
		if a.ID == id {
			s.m.opts.Metrics.lost(s.m.opts.Kind.Type)
			s.m.log.WarnContext(ctx, "stream is gone but active, created again", slog.String(logs.Stream, s.m.opts.Kind.Stream(id)))
			if _, err := s.m.create(ctx, id); !errors.Is(err, ErrForeign) {
				return true, err
			}
			return false, nil
		}
	}
	return false, nil
}

// apply makes a running stream what the active set says.
func (s *subscription) apply(r *running, a Activation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots := r.slots
	if a.TotalCount > 0 {
		r.total, slots = a.TotalCount, s.slots(s.m.opts.Config(), a.TotalCount)
	}
	if slots != r.slots {
		s.m.opts.Metrics.resized(s.m.opts.Kind.Type, slots-r.slots)
		s.m.log.Info("stream resized", slog.String(logs.Stream, r.stream), slog.Int("from", r.slots), slog.Int("slots", slots))
		r.slots = slots
		r.reader.Resize(slots)
	}
	if a.Paused != r.paused {
		r.paused = a.Paused
		r.reader.SetPaused(a.Paused)
		s.m.log.Info("stream paused or resumed", slog.String(logs.Stream, r.stream), slog.Bool("paused", a.Paused))
	}
}

// stop stops the reader of id and waits for it, bounded by Config.StopTimeout unless all are drained.
func (s *subscription) stop(ctx context.Context, id string, why string) error {
	unlock, err := s.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	r := s.get(id)
	if r == nil {
		return nil
	}
	return s.stopLocked(ctx, r, why)
}

// stopLocked needs the lock of r.id.
func (s *subscription) stopLocked(ctx context.Context, r *running, why string) error {
	drain, cancel := ctx, context.CancelFunc(func() {})
	if why != stopDrained {
		drain, cancel = context.WithTimeout(ctx, s.m.opts.Config().StopTimeout)
	}
	defer cancel()
	err := r.reader.Drain(drain)
	s.remove(ctx, r, why)
	if err != nil {
		s.m.log.WarnContext(ctx, "stream did not drain in time", slog.String(logs.Stream, r.stream), logs.Err(err))
		return fmt.Errorf("drain %s: %w", r.stream, err)
	}
	return nil
}

// remove removes a reader that has ended, and this instance's status from meta.
func (s *subscription) remove(ctx context.Context, r *running, why string) {
	s.mu.Lock()
	if s.running[r.id] == r {
		delete(s.running, r.id)
		s.m.opts.Metrics.stopped(s.m.opts.Kind.Type, why, r.slots)
	}
	s.mu.Unlock()
	s.m.inFlight.watch(r.stream, false)
	// A status that stays behind goes stale within seconds, so an error here is worth no more than
	// a line.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.m.opts.Client().HDel(ctx, MetaKey(r.stream), s.m.statusField()).Err(); err != nil {
		s.m.log.DebugContext(ctx, "status not removed", slog.String(logs.Stream, r.stream), logs.Err(err))
	}
	s.m.log.Info("stream stopped", slog.String(logs.Stream, r.stream), slog.String("reason", why))
}

// ended reports whether the reader has ended by itself.
func (r *running) ended() bool {
	select {
	case <-r.reader.Done():
		return true
	default:
		return false
	}
}
