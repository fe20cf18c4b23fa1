package kafka

import (
	"context"
	"sync"
	"time"
)

// gateInterval is how often a Flow.Gate is asked. Whoever emits asks as well, so a gate that closes
// is obeyed at once, and one that opens within this time.
const gateInterval = 20 * time.Millisecond

// gate asks Flow.Gate for all emissions of a subscription. A nil *gate is always open.
type gate struct {
	ask     func() bool
	mu      sync.Mutex
	open    bool
	changed chan struct{} // closed when open changes, then replaced
}

// newGate returns the gate for ask; nil when ask is nil.
func newGate(ask func() bool) *gate {
	if ask == nil {
		return nil
	}
	return &gate{ask: ask, open: true, changed: make(chan struct{})}
}

// state asks and returns the answer, with a channel that is closed when the answer has changed.
func (g *gate) state() (open bool, changed <-chan struct{}) {
	if g == nil {
		return true, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.ask(); now != g.open {
		g.open = now
		close(g.changed)
		g.changed = make(chan struct{})
	}
	return g.open, g.changed
}

// watch asks at intervals until ctx ends.
func (g *gate) watch(ctx context.Context) {
	if g == nil {
		return
	}
	tick := time.NewTicker(gateInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.state()
		}
	}
}
