package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// loads runs what panels read. Equal loads run once, however many people look, and nothing runs while
// nobody does. A load that hangs is waited for by nobody longer than the limit, and is not started again
// before it has returned. Build it with newLoads.
type loads struct {
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	max int // of results that are kept; anybody may ask for any input

	mu      sync.Mutex // guards what follows
	stopped bool
	age     int // how often renew was called
	byKey   map[string]*load
	taken   map[string]int // runs of each share
	ended   chan struct{}  // closed when a run ends, and then made again
}

// load is the last result of one panel and one input.
type load struct {
	running chan struct{} // closed at the end of the run; nil while none runs
	last    result
	used    time.Time
	age     int // of the loads when the last run began
}

// result is what a run returned. The zero value is none.
type result struct {
	value any
	err   error
	at    time.Time // when the run ended
	age   int       // of the load
}

// pace says how long a load is waited for, how long it may run, and how old a result may be. An older one is kept for
// those who would wait too long, unless drop is set.
type pace struct {
	wait, run, fresh time.Duration
	drop             bool
	shares           []share
}

// share is what a run belongs to, such as a person, of which at most so many run at once. More of them wait for a
// turn, as long as for an answer.
type share struct {
	of   string
	most int
}

// maxLoads is the number of results of panels that are kept.
const maxLoads = 256

var (
	errBusy    = errors.New("too many panels are being read: try again in a moment")
	errCrowded = errors.New("too many of your panels, or of those that are read when somebody asks, are being read: try again in a moment")
	errStopped = errors.New("the console is being stopped")
)

func newLoads(most int) *loads {
	l := &loads{max: most, byKey: map[string]*load{}, taken: map[string]int{}, ended: make(chan struct{})}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// get returns the result of do. late says that the run has not ended within p.wait; the result is then
// that of an earlier run, or the zero value.
func (l *loads) get(ctx context.Context, key string, p pace, do func(context.Context) (any, error)) (r result, late bool) {
	wait := time.NewTimer(p.wait)
	defer wait.Stop()
	l.mu.Lock()
	age := l.age
	l.mu.Unlock()
	for {
		one, running, r := l.begin(key, p, do)
		if running == nil {
			return r, false
		}
		select {
		case <-running:
		case <-wait.C:
			late = true
		case <-ctx.Done():
			late = true
		}
		if one == nil { // it had no turn
			if late {
				return result{err: errCrowded, at: time.Now()}, false
			}
			continue
		}
		l.mu.Lock()
		r = one.last
		l.mu.Unlock()
		if late || r.age >= age {
			return r, late
		}
	}
}

// renew makes what was read before too old, and what is being read now, too: somebody has changed it.
func (l *loads) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.age++
}

// begin returns the run to wait for, or the result if that is fresh. Without a load, what it returns ends when another
// run does, because this one has no turn yet.
func (l *loads) begin(key string, p pace, do func(context.Context) (any, error)) (one *load, running chan struct{}, r result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	one = l.byKey[key]
	if l.stopped {
		return nil, nil, result{err: errStopped, at: now}
	}
	if one != nil {
		one.used = now
		if one.running != nil {
			return one, one.running, result{}
		}
		if !one.last.at.IsZero() && one.last.age == l.age && now.Sub(one.last.at) < p.fresh {
			return one, nil, one.last
		}
	}
	switch {
	case l.crowded(p.shares):
		return nil, l.ended, result{}
	case one == nil && !l.room():
		return nil, nil, result{err: errBusy, at: now}
	case one == nil:
		one = &load{used: now}
		l.byKey[key] = one
	}
	l.count(p.shares)
	one.running, one.age = make(chan struct{}), l.age
	l.work.Go(func() {
		l.run(one, p, do)
		if p.drop {
			time.AfterFunc(p.fresh, func() { l.drop(key, one, p.fresh) })
		}
	})
	return one, one.running, result{}
}

// crowded reports whether a share has all its runs. The mutex is held.
func (l *loads) crowded(shares []share) bool {
	return slices.ContainsFunc(shares, func(s share) bool { return l.taken[s.of] >= s.most })
}

// room makes room for one more load, and reports whether there is some. The mutex is held.
func (l *loads) room() bool {
	if len(l.byKey) < l.max {
		return true
	}
	oldest := ""
	for key, one := range l.byKey {
		if one.running == nil && (oldest == "" || one.used.Before(l.byKey[oldest].used)) {
			oldest = key
		}
	}
	delete(l.byKey, oldest)
	return oldest != ""
}

func (l *loads) run(one *load, p pace, do func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(l.life, p.run)
	defer cancel()
	value, err := guarded(ctx, do)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s: %w", p.run, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	one.last = result{value, err, time.Now(), one.age}
	close(one.running)
	one.running = nil
	l.uncount(p.shares)
}

// take takes part of shares for what is no load, unless one has all its runs.
func (l *loads) take(shares []share) (release func(), taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.crowded(shares) {
		return nil, false
	}
	l.count(shares)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.uncount(shares)
	}, true
}

// count takes part of shares. The mutex is held.
func (l *loads) count(shares []share) {
	for _, s := range shares {
		l.taken[s.of]++
	}
}

// uncount gives back what count has taken, and wakes those who wait for a turn. The mutex is held.
func (l *loads) uncount(shares []share) {
	for _, s := range shares {
		if l.taken[s.of]--; l.taken[s.of] == 0 {
			delete(l.taken, s.of)
		}
	}
	close(l.ended)
	l.ended = make(chan struct{})
}

// drop forgets a result that is not fresh any more.
func (l *loads) drop(key string, one *load, fresh time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey[key] == one && one.running == nil && time.Since(one.last.at) >= fresh {
		delete(l.byKey, key)
	}
}

func guarded(ctx context.Context, do func(context.Context) (any, error)) (value any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return do(ctx)
}

// stop ends all runs and waits for them until ctx ends.
func (l *loads) stop(ctx context.Context) error {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.end()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.work.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("console: a panel is still being read: %w", ctx.Err())
	}
}
