// Package loop runs what a service repeats until it is stopped, and waits in a way that a context can
// end. A service with a Group needs no Stop of its own, because the Group ends its goroutines and waits
// for them:
//
//	type pruner struct{ loop.Group }
//
//	func (p *pruner) Start(ctx context.Context) error {
//		return p.Group.Start(ctx, func(ctx context.Context) { loop.Every(ctx, time.Hour, p.prune) })
//	}
package loop

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrStarted means that a Group, or a pipeline.Life, was started or stopped before.
var ErrStarted = errors.New("was started or stopped before")

// Group runs the goroutines of a Service, which calls Start and Stop from its own. A Group runs once.
// The zero value is ready. It is safe for concurrent use.
type Group struct {
	mu      sync.Mutex
	end     context.CancelFunc // nil before Start
	ended   chan struct{}      // closed when all loops have returned; nil before Stop
	running sync.WaitGroup
}

// Start starts a goroutine for each loop and returns. The context of the loops ends at Stop; it has
// the values of ctx, but not its end. The error is ErrStarted after an earlier Start or Stop.
func (g *Group) Start(ctx context.Context, loops ...func(context.Context)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.end != nil || g.ended != nil {
		return ErrStarted
	}
	ctx, g.end = context.WithCancel(context.WithoutCancel(ctx))
	for _, loop := range loops {
		g.running.Go(func() { loop(ctx) })
	}
	return nil
}

// Stop ends the context of the loops and waits until they have returned, or until ctx ends. It is
// idempotent and legal before Start.
func (g *Group) Stop(ctx context.Context) error {
	ended := g.stop()
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

func (g *Group) stop() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		return g.ended
	}
	g.ended = make(chan struct{})
	if g.end == nil {
		close(g.ended)
		return g.ended
	}
	g.end()
	go func() {
		g.running.Wait()
		close(g.ended)
	}()
	return g.ended
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
