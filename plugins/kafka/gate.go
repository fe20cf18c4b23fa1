package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline/loop"
)

// gateInterval is how often a Flow.Gate is evaluated. Each delivery evaluates it too, so a gate
// that closes takes effect at once, and one that opens takes effect within this time.
const gateInterval = 20 * time.Millisecond

// gate evaluates Flow.Gate for all deliveries of a subscription. A nil *gate is always open.
type gate struct {
	isOpen  func() bool
	mu      sync.Mutex
	open    bool
	changed chan struct{} // closed when open changes, then replaced
}

// newGate returns the gate for isOpen; nil when isOpen is nil.
func newGate(isOpen func() bool) *gate {
	if isOpen == nil {
		return nil
	}
	return &gate{isOpen: isOpen, open: true, changed: make(chan struct{})}
}

// send puts msg into out while the gate is open. It returns false when ctx ended first.
func (g *gate) send(ctx context.Context, out chan<- *message.Message, msg *message.Message) bool {
	for g.wait(ctx) {
		if g.sendNow(ctx, out, msg) {
			return true
		}
	}
	return false
}

// sendNow is send that also returns false when the gate is closed or closes.
func (g *gate) sendNow(ctx context.Context, out chan<- *message.Message, msg *message.Message) bool {
	for ctx.Err() == nil {
		open, changed := g.state()
		if !open {
			return false
		}
		select {
		case out <- msg:
			return true
		case <-changed:
		case <-ctx.Done():
		}
	}
	return false
}

// wait returns when the gate is open; false when ctx ended first.
func (g *gate) wait(ctx context.Context) bool {
	for ctx.Err() == nil {
		open, changed := g.state()
		if open {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return false
}

// state evaluates the gate. The channel is closed when the result has changed.
func (g *gate) state() (open bool, changed <-chan struct{}) {
	if g == nil {
		return true, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.isOpen(); now != g.open {
		g.open = now
		close(g.changed)
		g.changed = make(chan struct{})
	}
	return g.open, g.changed
}

// watch evaluates the gate at intervals until ctx ends.
func (g *gate) watch(ctx context.Context) {
	if g == nil {
		return
	}
	loop.Every(ctx, gateInterval, func(context.Context) { g.state() })
}

// semaphore bounds the messages in flight (Flow.MaxInFlight). A nil one has no bound.
type semaphore chan struct{}

func newSemaphore(n int) semaphore {
	if n <= 0 {
		return nil
	}
	return make(semaphore, n)
}

// acquire waits until one more may be in flight. It returns false when ctx ended first.
func (s semaphore) acquire(ctx context.Context) bool {
	if s == nil {
		return true
	}
	select {
	case s <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s semaphore) release() {
	if s != nil {
		<-s
	}
}
