// Package slots limits what happens at the same time, for callers that wait in the order of their calls:
//
//	calls := slots.New(8)
//	if err := calls.Acquire(ctx); err != nil {
//		return err // ctx has ended, or the stream is being drained
//	}
//	defer calls.Release()
package slots

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// ErrNoMore is returned to callers that would wait for a closed Slots: their process or
// stream is being drained.
var ErrNoMore = errors.New("no slot is free, and none is waited for during a drain")

// Slots limits how many callers do something at the same time. Callers that wait get their slots
// in the order of their calls. A nil *Slots has no limit. Slots is safe for concurrent use.
type Slots struct {
	mu      sync.Mutex
	limit   int
	taken   int
	waiting list.List // of *wait
	closed  bool
}

// wait is a caller that waits for a slot.
type wait struct {
	ended chan struct{}
	err   error // nil: it has a slot
}

// New returns limit free slots.
func New(limit int) *Slots { return &Slots{limit: limit} }

// Acquire waits for a slot, which the caller releases. The error is that of ctx, or
// ErrNoMore. A free slot is given even if ctx has ended, or s is closed.
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
		return ErrNoMore
	}
	wait := &wait{ended: make(chan struct{})}
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
	wait := s.waiting.Remove(s.waiting.Front()).(*wait)
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
		s.endWait(ErrNoMore)
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

// OfSource are the slots of a message's source.
type OfSource struct {
	// Calls limits what the concurrency of the source limits. A handler has one during its call.
	Calls *Slots
	// Starts limits the messages that are started and whose calls have not ended. A handler
	// acquires one before its first step, and releases it after its call. There are more than
	// Calls, so that messages are prepared in batches while others are called.
	Starts *Slots
}

type key struct{}

// WithSource returns a context with the slots of a message's source.
func WithSource(ctx context.Context, s OfSource) context.Context {
	return context.WithValue(ctx, key{}, s)
}

// From returns the slots of the source of the message being handled. Both are nil if the
// source limits its messages itself.
func From(ctx context.Context) OfSource {
	s, _ := ctx.Value(key{}).(OfSource)
	return s
}
