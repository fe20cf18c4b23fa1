package poll

import (
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// The limits of the in-flight table.

// workers returns how many workers there may be. With slots, half as many again prepare their
// messages while others have the slots.
func (t *inflight) workers() int {
	if t.slots == nil {
		return t.limit
	}
	return t.least() + min(t.more, t.mostMore())
}

func (t *inflight) least() int { return t.limit + (t.limit+1)/2 }

// mostStarts returns how many messages may be started: they wait for their slots, or have them.
func (t *inflight) mostStarts() int { return max(t.opts.Ahead, t.least()) }

// mostMore is the maximum of more. As many messages as may be started may also wait before that, or
// store their results.
func (t *inflight) mostMore() int { return max(0, min(maxMore, 2*t.opts.Ahead-t.least())) }

const (
	maxMore      = 256
	longHandling = 100 * time.Millisecond
)

// adapt changes the number of workers when a message was handled. One is added if a slot and a
// start are free although all workers are busy. Many end if messages take long: those that are
// prepared would wait for their slots, and another instance may be idle.
func (t *inflight) adapt(took time.Duration) {
	switch {
	case took > longHandling:
		t.more /= 2
	case t.slots != nil && t.more < t.mostMore() && t.busy >= t.workers() && t.slots.Free() && t.starts.Free():
		t.more++
	}
}

// readAhead returns how many entries are buffered when the next read is sent. It is 0 when the
// entries of the last read last for too long.
func (t *inflight) readAhead() int {
	if t.ahead > 0 && time.Now().After(t.aheadEnd) {
		t.ahead = 0
	}
	return t.ahead
}

func (t *inflight) resize(concurrency int) {
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

const (
	// maxHeldBytes is the size of the entries in flight at which a reader fetches nothing more. Its
	// messages need about three times as much memory.
	maxHeldBytes = 16 << 20
	// maxFetchBytes is the expected size of the entries that one command fetches, unless a single
	// entry is larger.
	maxFetchBytes = 4 << 20
)

// bytesOf returns the size of an entry: its names and values.
func bytesOf(x goredis.XMessage) (n int) {
	for name, v := range x.Values {
		text, _ := v.(string)
		n += len(name) + len(text)
	}
	return n
}

// expect notes the size of entries that came in. The estimate follows larger entries at once, and
// smaller ones by half per command, because a few small entries among large ones change little.
func (t *inflight) expect(entries, bytes int) {
	if entries > 0 {
		t.size = max(1, bytes/entries, t.size/2)
	}
}

// forget ends the hold of an entry's content, which no delivery needs any more.
func (t *inflight) forget(e *pendingEntry) {
	t.bytes -= e.bytes
	e.bytes, e.Values = 0, nil
	t.room.Signal()
}

// isFull reports whether the entries in flight are too large for another one.
func (t *inflight) isFull() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes >= maxHeldBytes
}

// fits returns how many of count entries one command may fetch by their expected size, at least
// one. While no size is known it is otherwise. The server limits a read by entries only, so large
// entries that follow small ones exceed the limits until the first of them is seen.
func (t *inflight) fits(count, otherwise int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fitting(count, otherwise)
}

func (t *inflight) fitting(count, otherwise int) int {
	if t.size == 0 {
		return otherwise
	}
	return max(1, min(count, min(maxFetchBytes, maxHeldBytes-t.bytes)/t.size))
}

// hasRoom reports whether a read may be sent: the workers need entries, and the entries that wait
// for other reasons are within their limits.
func (t *inflight) hasRoom() bool {
	return t.bytes < maxHeldBytes && (t.busy+len(t.buffer) < t.workers() || len(t.buffer) < t.readAhead()) &&
		!t.isFullOfDelayed() && len(t.acks) < maxUnflushed
}

// isFullOfDelayed reports whether so many entries wait for their redelivery that nothing is read until one is due. Fewer
// of them keep no other entry waiting.
func (t *inflight) isFullOfDelayed() bool { return t.delayed >= t.limit+t.opts.BatchSize }

// setAhead sets how many entries are buffered when the next read is sent before end.
func (t *inflight) setAhead(entries int, end time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ahead, t.aheadEnd = entries, end
}

// awaitCapacity waits until a read may be sent. It returns false when the table is closed.
func (t *inflight) awaitCapacity() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for !t.closed && !t.hasRoom() {
		t.room.Wait()
	}
	return !t.closed
}

// readable returns whether a read may be sent, and whether the table is closed.
func (t *inflight) readable() (room, closed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hasRoom(), t.closed
}

// free returns how many more entries fit: one per idle worker, and one batch ahead, within the
// limits of bytes.
func (t *inflight) free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := t.workers() + t.opts.BatchSize - t.busy - len(t.buffer)
	if t.closed || free <= 0 || t.isFullOfDelayed() || t.bytes >= maxHeldBytes {
		return 0
	}
	return t.fitting(free, free)
}
