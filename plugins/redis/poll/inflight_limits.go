package poll

import "time"

// The limits of the in-flight table.

// workers returns how many workers there may be. With slots, half as many again prepare their
// messages while others have the slots.
func (t *table) workers() int {
	if t.slots == nil {
		return t.limit
	}
	return t.least() + min(t.more, t.mostMore())
}

func (t *table) least() int { return t.limit + (t.limit+1)/2 }

// mostStarts returns how many messages may be started: they wait for their slots, or have them.
func (t *table) mostStarts() int { return max(t.o.Ahead, t.least()) }

// mostMore is the maximum of more. As many messages as may be started may also wait before that, or
// store their results.
func (t *table) mostMore() int { return max(0, min(maxMore, 2*t.o.Ahead-t.least())) }

const (
	maxMore      = 256
	longHandling = 100 * time.Millisecond
)

// adapt changes the number of workers when a message was handled. One is added if a slot and a
// start are free although all workers are busy. Many end if messages take long: those that are
// prepared would wait for their slots, and another instance may be idle.
func (t *table) adapt(took time.Duration) {
	switch {
	case took > longHandling:
		t.more /= 2
	case t.slots != nil && t.more < t.mostMore() && t.busy >= t.workers() && t.slots.Free() && t.starts.Free():
		t.more++
	}
}

// readAhead returns how many entries are buffered when the next read is sent. It is 0 when the
// entries of the last read last for too long.
func (t *table) readAhead() int {
	if t.ahead > 0 && time.Now().After(t.aheadEnd) {
		t.ahead = 0
	}
	return t.ahead
}

func (t *table) resize(concurrency int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = concurrency
	t.slots.Resize(concurrency)
	t.starts.Resize(t.mostStarts())
	t.spawn()
	t.room.Signal()
}

// maxUnflushed is the number of unflushed acknowledgements at which reading stops.
const maxUnflushed = 4096

// hasRoom reports whether a read may be sent: the workers need entries, and the entries that wait
// for other reasons are within their limits.
func (t *table) hasRoom() bool {
	return (t.busy+len(t.buffer) < t.workers() || len(t.buffer) < t.readAhead()) &&
		t.delayed < t.limit+t.o.BatchSize && len(t.acks) < maxUnflushed
}

// setAhead sets how many entries are buffered when the next read is sent before end.
func (t *table) setAhead(entries int, end time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ahead, t.aheadEnd = entries, end
}

// awaitRoom waits until a read may be sent. It returns false when the table is closed.
func (t *table) awaitRoom() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for !t.closed && !t.hasRoom() {
		t.room.Wait()
	}
	return !t.closed
}

// readable returns whether a read may be sent, and whether the table is closed.
func (t *table) readable() (room, closed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hasRoom(), t.closed
}

// free returns how many more entries fit: one per idle worker, and one batch ahead.
func (t *table) free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0
	}
	return max(0, t.workers()+t.o.BatchSize-t.busy-len(t.buffer)-t.delayed)
}
