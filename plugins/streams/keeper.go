package streams

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// putBackAfter is after how many rounds in a row a stream that is there, read here, but not on the
// active set is put back. One is not enough: an idle stop is off the set for a moment before the
// stream is gone.
const putBackAfter = 2

// tendTogether is how many streams are tended in one pipeline, bounded by callTimeout.
const tendTogether = 100

// keep is the keeper: it goes a round every Config.Refresh and on a hint, until the life ends.
func (s *subscription) keep() {
	defer close(s.kept)
	timer := time.NewTimer(s.m.config().Refresh)
	defer timer.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.m.hint:
		case <-timer.C:
		}
		s.round()
		timer.Reset(s.m.config().Refresh)
	}
}

// round asks what should run, starts and changes what differs, and tends what runs. It waits for
// nothing that a slow handler could hold up: starts and stops go on by themselves, one a stream.
func (s *subscription) round() {
	s.reap()
	ctx, cancel := context.WithTimeout(s.life, callTimeout)
	active, err := s.m.asker.active(ctx)
	cancel()
	if err != nil {
		if s.life.Err() == nil {
			s.m.metrics.failed(s.m.kind.Type, "active")
			s.m.log.Warn("what is active could not be asked, running streams go on", pipeline.Err(err))
		}
		s.tend(nil)
		return
	}
	wanted := make(map[int64]Activation, len(active))
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
	s.tend(wanted)
	s.retryCleanups()
}

// begin runs f under the lock of id on a goroutine of its own, unless a start or stop of id is
// under way: then the next round comes back to it. f ends by itself when the life ends; it is
// bounded by the timeouts within it, and by that of the drain.
func (s *subscription) begin(id int64, f func(context.Context)) {
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
	case <-s.life.Done():
		return
	}
	err := s.startLocked(ctx, a)
	s.noteForeign(a.ID, errors.Is(err, ErrForeign))
	if errors.Is(err, ErrForeign) || errors.Is(err, ErrRefused) {
		s.reportBlocked(ctx, a.ID)
	}
	if err != nil && !errors.Is(err, ErrForeign) && s.life.Err() == nil {
		s.m.metrics.failed(s.m.kind.Type, "start")
		s.m.notices.Warn(s.m.log, "stream not started, tried again", slog.String(pipeline.LogStream, s.m.kind.Stream(a.ID)), pipeline.Err(err))
	}
}

// reportBlocked calls Options.Blocked.
func (s *subscription) reportBlocked(ctx context.Context, id int64) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.m.blocked(ctx, id); err != nil && s.life.Err() == nil {
		s.m.notices.Warn(s.m.log, "a stream that can't be used was not reported, tried again", slog.String(pipeline.LogStream, s.m.kind.Stream(id)), pipeline.Err(err))
	}
}

// reap forgets the readers that ended by themselves: their streams are gone and not active.
func (s *subscription) reap() {
	for _, r := range s.list() {
		if r.ended() {
			s.begin(r.id, func(ctx context.Context) { s.forget(ctx, r, stopInactive) })
		}
	}
}

// tend visits every running stream: leaves the status of this instance, has acknowledged entries
// trimmed, and looks whether the stream is idle or no longer wanted. wanted is nil when it could not
// be asked.
func (s *subscription) tend(wanted map[int64]Activation) {
	list, c := s.list(), s.m.config()
	var found redispoll.Delays
	var failed int
	var first error
	for len(list) > 0 && s.life.Err() == nil {
		n := min(len(list), tendTogether)
		part := list[:n]
		list = list[n:]
		keys, args := make([][]string, n), make([][]any, n)
		for i, r := range part {
			keys[i] = []string{r.stream, MetaKey(r.stream)}
			args[i] = append(s.m.args(r.id), s.m.statusField(), s.status(r))
		}
		ctx, cancel := context.WithTimeout(s.life, callTimeout)
		cmds := runAll(ctx, s.m.client(), s.m.scripts.tend, keys, args)
		unanswered := 0
		late := ctx.Err() != nil
		cancel()
		for i, cmd := range cmds {
			t, err := parseTended(cmd.Result())
			if err = s.m.refusal(part[i].id, err); errors.Is(err, ErrForeign) {
				s.begin(part[i].id, func(ctx context.Context) {
					if s.get(part[i].id) == part[i] {
						_ = s.stopLocked(ctx, part[i], stopForeign) // logged there
					}
				})
				continue
			} else if errors.Is(err, ErrRefused) {
				s.m.metrics.failed(s.m.kind.Type, "tend")
				if _, active := wanted[part[i].id]; active {
					s.begin(part[i].id, func(ctx context.Context) { s.reportBlocked(ctx, part[i].id) })
				}
				continue // logged there, and no reason to log the others' round as failed
			}
			if err != nil {
				failed++
				if !redispoll.IsReply(err) {
					unanswered++
				}
				if first == nil {
					first = err
				}
				continue
			}
			s.m.metrics.trimmed(s.m.kind.Type, t.trimmed)
			found.Note(part[i].stream, t.delaying, c.ForeignGroupGrace)
			s.judge(part[i], t, wanted)
		}
		if late || unanswered == n { // the server is away: the others would take as long
			failed += len(list)
			break
		}
	}
	s.m.delayed(&found)
	if first != nil && s.life.Err() == nil {
		s.m.metrics.failed(s.m.kind.Type, "tend")
		s.m.log.Warn("streams could not be tended", slog.Int("streams", failed), pipeline.Err(first))
	}
}

// judge decides what a visit means for a stream.
func (s *subscription) judge(r *running, t tended, wanted map[int64]Activation) {
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

	hand, _ := s.m.hands.look(r.stream)
	c := s.m.config()
	switch {
	case !t.exists && wanted != nil && !active:
		s.begin(r.id, func(ctx context.Context) {
			if s.get(r.id) == r {
				_ = s.stopLocked(ctx, r, stopInactive) // logged there
				s.m.Hint()
			}
		})
	case t.exists && t.drained && !paused && hand == 0 && t.idleMillis >= c.IdleTimeout.Milliseconds():
		s.begin(r.id, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, c.StopTimeout+callTimeout)
			defer cancel()
			if n, _ := s.m.hands.look(r.stream); n == 0 && s.get(r.id) == r {
				s.retire(ctx, r)
			}
		})
	case missed >= putBackAfter:
		s.begin(r.id, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			_ = s.m.putBack(ctx, r.id) // logged there
		})
	}
}

// status is what this instance says about a stream, as JSON.
func (s *subscription) status(r *running) string {
	n, last := s.m.hands.look(r.stream)
	s.mu.Lock()
	st := wireStatus{Slots: r.slots, Paused: r.paused, Since: r.since.UnixMilli(), InHand: n}
	s.mu.Unlock()
	if !last.IsZero() {
		st.Last = last.UnixMilli()
	}
	text, _ := json.Marshal(st) // numbers and a bool: can't fail
	return string(text)
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
