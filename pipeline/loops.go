package pipeline

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrStarted means that Loops or a Life were started or stopped before.
var ErrStarted = errors.New("was started or stopped before")

// Loops runs the goroutines of a Service, which calls Start and Stop from its own. Loops run once.
// The zero value is ready. It is safe for concurrent use.
type Loops struct {
	mu      sync.Mutex
	end     context.CancelFunc // nil before Start
	ended   chan struct{}      // closed when all loops have returned; nil before Stop
	running sync.WaitGroup
}

// Start starts a goroutine for each loop and returns. The context of the loops ends at Stop; it has
// the values of ctx, but not its end. The error is ErrStarted after an earlier Start or Stop.
func (l *Loops) Start(ctx context.Context, loops ...func(context.Context)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil || l.ended != nil {
		return ErrStarted
	}
	ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	for _, loop := range loops {
		l.running.Go(func() { loop(ctx) })
	}
	return nil
}

// Stop ends the context of the loops and waits until they have returned, or until ctx ends. It is
// idempotent and legal before Start.
func (l *Loops) Stop(ctx context.Context) error {
	ended := l.stop()
	select {
	case <-ended:
		return nil
	default:
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Loops) stop() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return l.ended
	}
	l.ended = make(chan struct{})
	if l.end == nil {
		close(l.ended)
		return l.ended
	}
	l.end()
	go func() {
		l.running.Wait()
		close(l.ended)
	}()
	return l.ended
}

// Every calls f each time that interval has passed since the last call returned, until ctx ends.
func Every(ctx context.Context, interval time.Duration, f func(context.Context)) {
	Repeat(ctx, interval, func(ctx context.Context) time.Duration {
		f(ctx)
		return interval
	})
}

// Repeat calls f after wait, and again after each duration that f returns, until ctx ends.
func Repeat(ctx context.Context, wait time.Duration, f func(context.Context) time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if ctx.Err() != nil {
			return
		}
		timer.Reset(f(ctx))
	}
}

// Sleep waits for d. It returns false when ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
