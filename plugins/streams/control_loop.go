package streams

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis"
)

// reactivateAfter is after how many consecutive rounds a stream is reactivated that exists and is
// read here, but is not in the active set. One is not enough: during an idle stop the stream is out
// of the set for a moment before it is deleted.
const reactivateAfter = 2

// visitBatch is how many streams one pipeline visits, bounded by callTimeout.
const visitBatch = 100

// controlLoop runs reconcile every Config.ReconcileInterval and after Refresh, until Reading ends.
// A Refresh visits no stream: while many streams are created, each creation calls it.
func (s *subscription) controlLoop() {
	timer := time.NewTimer(s.m.opts.Config().ReconcileInterval)
	defer timer.Stop()
	for {
		select {
		case <-s.Reading.Done():
			return
		case <-s.m.refresh:
			s.reconcile()
		case <-timer.C:
			wanted := s.reconcile()
			s.visitAll(wanted)
			if wanted != nil {
				s.retryCleanups()
			}
			timer.Reset(s.m.opts.Config().ReconcileInterval)
		}
	}
}

// reconcile reads the active set, and starts and changes streams. It returns the active set, or nil
// when it could not be read. It waits for nothing that a slow handler could delay: starts and stops
// run in goroutines, one per stream.
func (s *subscription) reconcile() (wanted map[string]Activation) {
	s.reap()
	ctx, cancel := context.WithTimeout(s.Reading, callTimeout)
	active, err := s.m.active.get(ctx)
	cancel()
	if err != nil {
		if s.Reading.Err() == nil {
			s.m.opts.Metrics.failed(s.m.opts.Kind.Type, "active")
			s.m.log.Warn("active set could not be read, running streams go on", logs.Err(err))
		}
		return nil
	}
	wanted = make(map[string]Activation, len(active))
	for _, a := range active {
		wanted[a.ID] = a
		r := s.get(a.ID)
		switch {
		case r != nil:
			s.apply(r, a)
		case !a.Paused:
			s.begin(a.ID, func(ctx context.Context) { s.startActive(ctx, a) })
		}
	}
	s.countForeign(wanted)
	return wanted
}

// begin runs f under the lock of id in a goroutine. During another start or stop of id it does
// nothing: the next round tries again. f must end when Reading ends. Its own timeouts and that of
// the drain bound it.
func (s *subscription) begin(id string, f func(context.Context)) {
	unlock := s.locks.tryLock(id)
	if unlock == nil {
		return
	}
	s.ops.Go(func() {
		defer unlock()
		f(s.work)
	})
}

func (s *subscription) startActive(ctx context.Context, a Activation) {
	select {
	case s.starts <- struct{}{}:
		defer func() { <-s.starts }()
	case <-s.Reading.Done():
		return
	}
	err := s.startLocked(ctx, a)
	s.noteForeign(a.ID, errors.Is(err, ErrForeign))
	if errors.Is(err, ErrForeign) || errors.Is(err, ErrRefused) {
		s.reportBlocked(ctx, a.ID)
	}
	if err != nil && !errors.Is(err, ErrForeign) && s.Reading.Err() == nil {
		s.m.opts.Metrics.failed(s.m.opts.Kind.Type, "start")
		s.m.sampler.Warn(s.m.log, "stream not started, tried again", slog.String(logs.Stream, s.m.opts.Kind.Stream(a.ID)), logs.Err(err))
	}
}

// reportBlocked calls Options.Blocked.
func (s *subscription) reportBlocked(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.m.opts.Blocked(ctx, id); err != nil && s.Reading.Err() == nil {
		s.m.sampler.Warn(s.m.log, "a stream that can't be used was not reported, tried again", slog.String(logs.Stream, s.m.opts.Kind.Stream(id)), logs.Err(err))
	}
}

// reap removes the readers that ended by themselves: their streams are gone and not active.
func (s *subscription) reap() {
	for _, r := range s.list() {
		if r.ended() {
			s.begin(r.id, func(ctx context.Context) { s.remove(ctx, r, stopInactive) })
		}
	}
}

// visitAll visits the streams that are due. A visit writes the status of this instance, trims
// acknowledged entries, and finds out whether the stream is idle or no longer active. wanted is nil
// when the active set could not be read.
func (s *subscription) visitAll(wanted map[string]Activation) {
	all, c := s.list(), s.m.opts.Config()
	list := s.dueVisits(all, wanted)
	var found redis.Delays
	var failed int
	var first error
	for len(list) > 0 && s.Reading.Err() == nil {
		n := min(len(list), visitBatch)
		part := list[:n]
		list = list[n:]
		keys, args := make([][]string, n), make([][]any, n)
		for i, r := range part {
			keys[i] = []string{r.stream, MetaKey(r.stream)}
			args[i] = append(s.m.args(r.id), s.m.statusField(), s.status(r, c))
		}
		ctx, cancel := context.WithTimeout(s.Reading, callTimeout)
		cmds := runAll(ctx, s.m.opts.Client(), s.m.scripts.visit, keys, args)
		unanswered := 0
		late := ctx.Err() != nil
		cancel()
		for i, cmd := range cmds {
			t, err := parseVisited(cmd.Result())
			if err = s.m.refusal(part[i].id, err); errors.Is(err, ErrForeign) {
				s.begin(part[i].id, func(ctx context.Context) {
					if s.get(part[i].id) == part[i] {
						_ = s.stopLocked(ctx, part[i], stopForeign) // logged there
					}
				})
				continue
			} else if errors.Is(err, ErrRefused) {
				s.m.opts.Metrics.failed(s.m.opts.Kind.Type, "visit")
				if _, active := wanted[part[i].id]; active {
					s.begin(part[i].id, func(ctx context.Context) { s.reportBlocked(ctx, part[i].id) })
				}
				continue // logged there; the round of the others did not fail
			}
			if err != nil {
				failed++
				if !poll.IsReply(err) {
					unanswered++
				}
				if first == nil {
					first = err
				}
				continue
			}
			s.m.opts.Metrics.trimmed(s.m.opts.Kind.Type, t.trimmed)
			part[i].visited(t, c, time.Now())
			s.evaluate(part[i], t, wanted)
		}
		if late || unanswered == n { // the server is unavailable: the others would take as long
			failed += len(list)
			break
		}
	}
	entries := int64(0)
	for _, r := range all {
		found.Note(r.stream, r.delaying, c.ForeignGroupGrace)
		entries += r.entries
	}
	s.m.opts.Metrics.measured(s.m.opts.Kind.Type, entries)
	s.m.delayed(&found)
	if first != nil && s.Reading.Err() == nil {
		s.m.opts.Metrics.failed(s.m.opts.Kind.Type, "visit")
		s.m.log.Warn("streams could not be visited", slog.Int("streams", failed), logs.Err(first))
	}
}

// evaluate decides what to do with a stream after a visit.
func (s *subscription) evaluate(r *running, t visited, wanted map[string]Activation) {
	_, active := wanted[r.id]
	s.mu.Lock()
	paused := r.paused
	if wanted == nil || active || !t.exists {
		r.missed = 0
	} else {
		r.missed++
	}
	missed := r.missed
	s.mu.Unlock()

	inFlight, _ := r.inFlight.count()
	c := s.m.opts.Config()
	switch {
	case !t.exists && wanted != nil && !active:
		s.begin(r.id, func(ctx context.Context) {
			if s.get(r.id) == r {
				_ = s.stopLocked(ctx, r, stopInactive) // logged there
				s.m.Refresh()
			}
		})
	case t.exists && t.drained && !paused && inFlight == 0 && t.idleMillis >= c.IdleTimeout.Milliseconds():
		s.begin(r.id, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, c.StopTimeout+callTimeout)
			defer cancel()
			if n, _ := r.inFlight.count(); n == 0 && s.get(r.id) == r {
				s.retire(ctx, r)
			}
		})
	case missed >= reactivateAfter:
		s.begin(r.id, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			_ = s.m.reactivate(ctx, r.id) // logged there
		})
	}
}

func (s *subscription) list() []*running {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*running, 0, len(s.running))
	for _, r := range s.running {
		list = append(list, r)
	}
	return list
}
