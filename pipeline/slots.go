package pipeline

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// ErrNoMoreSlots is returned to callers that would wait for a closed Slots: their process or
// stream is being drained.
var ErrNoMoreSlots = errors.New("no slot is free, and none is waited for during a drain")

// Slots limits how many callers do something at the same time. Callers that wait get their slots
// in the order of their calls. A nil *Slots has no limit. Slots is safe for concurrent use.
type Slots struct {
	mu      sync.Mutex
	limit   int
	taken   int
	waiting list.List // of *slotWait
	closed  bool
}

// slotWait is a caller that waits for a slot.
type slotWait struct {
	ended chan struct{}
	err   error // nil: it has a slot
}

// NewSlots returns limit free slots.
func NewSlots(limit int) *Slots { return &Slots{limit: limit} }

// Acquire waits for a slot, which the caller releases. The error is that of ctx, or
// ErrNoMoreSlots. A free slot is given even if ctx has ended, or s is closed.
func (s *Slots) Acquire(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	if s.taken < s.limit {
		s.taken++
		s.mu.Unlock()
		return nil
	}
	if s.closed {
		s.mu.Unlock()
		return ErrNoMoreSlots
	}
	wait := &slotWait{ended: make(chan struct{})}
	place := s.waiting.PushBack(wait)
	s.mu.Unlock()
	select {
	case <-wait.ended:
		return wait.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-wait.ended: // in the same moment
		return wait.err
	default:
		s.waiting.Remove(place)
		return ctx.Err()
	}
}

// Release releases a slot.
func (s *Slots) Release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.give()
}

// Resize changes the number of slots. Slots that are too many end when they are released.
func (s *Slots) Resize(limit int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	s.give()
}

// give gives the free slots to callers that wait.
func (s *Slots) give() {
	for s.taken < s.limit && s.waiting.Len() > 0 {
		s.taken++
		s.endWait(nil)
	}
}

// endWait ends the longest wait.
func (s *Slots) endWait(err error) {
	wait := s.waiting.Remove(s.waiting.Front()).(*slotWait)
	wait.err = err
	close(wait.ended)
}

// Close ends all waits, now and later. It is idempotent.
func (s *Slots) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for s.waiting.Len() > 0 {
		s.endWait(ErrNoMoreSlots)
	}
}

// Free reports whether a slot is free.
func (s *Slots) Free() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken < s.limit
}

// Taken returns the number of taken slots.
func (s *Slots) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// SourceSlots are the slots of a message's source.
type SourceSlots struct {
	// Calls limits what the concurrency of the source limits. A handler has one during its call.
	Calls *Slots
	// Starts limits the messages that are started and whose calls have not ended. A handler
	// acquires one before its first step, and releases it after its call. There are more than
	// Calls, so that messages are prepared in batches while others are called.
	Starts *Slots
}

type slotsKey struct{}

// WithSlots returns a context with the slots of a message's source.
func WithSlots(ctx context.Context, s SourceSlots) context.Context {
	return context.WithValue(ctx, slotsKey{}, s)
}

// SlotsFrom returns the slots of the source of the message being handled. Both are nil if the
// source limits its messages itself.
func SlotsFrom(ctx context.Context) SourceSlots {
	s, _ := ctx.Value(slotsKey{}).(SourceSlots)
	return s
}
