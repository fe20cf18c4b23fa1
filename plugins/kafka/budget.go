package kafka

import "sync"

// budget is the bytes that all windows of a subscription may hold together. It is safe for
// concurrent use.
type budget struct {
	size int64

	mu      sync.Mutex
	used    int64
	waiting int           // readers that found no room
	freed   chan struct{} // closed by the next release
}

func newBudget(size int64) *budget { return &budget{size: size, freed: make(chan struct{})} }

// take takes n bytes, at most all there are, if they are free.
func (b *budget) take(n int64) (taken int64, ok bool) {
	n = min(n, b.size)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.size {
		return 0, false
	}
	b.used += n
	return n, true
}

// release frees n bytes, and wakes the readers that wait for them.
func (b *budget) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.waiting > 0 {
		close(b.freed)
		b.freed = make(chan struct{})
	}
}

// wait counts a reader that waits, and returns what is closed by the next release. Call it before
// take, so that no release is missed, and done afterwards.
func (b *budget) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting++
	return b.freed
}

func (b *budget) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting--
}

// wanted says whether a reader waits.
func (b *budget) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting > 0
}
