package poll

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// The order of the buffer.

// place puts an entry into the buffer: at the end, or with Ordered where its id belongs.
func (t *inflight) place(e *pendingEntry) {
	at := len(t.buffer)
	for t.opts.Ordered && at > 0 && before(e.ID, t.buffer[at-1].ID) {
		at--
	}
	t.buffer = slices.Insert(t.buffer, at, e)
}

// before compares two entry ids.
func before(a, b string) bool {
	ams, aseq, _ := strings.Cut(a, "-")
	bms, bseq, _ := strings.Cut(b, "-")
	return cmp.Or(cmp.Compare(len(ams), len(bms)), cmp.Compare(ams, bms), cmp.Compare(len(aseq), len(bseq)), cmp.Compare(aseq, bseq)) < 0
}

// mayStart reports whether the chain may start an entry that it has received.
func (t *inflight) mayStart(e *pendingEntry) bool {
	if !t.opts.stopped() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e.refused = true
	return false
}

// requeue ends a worker's work on an entry, which takes its place again. The entry that a worker
// offers may come after it.
func (t *inflight) requeue(e *pendingEntry) {
	t.busy--
	e.stage, e.since = stageBuffered, time.Now()
	t.place(e)
	for _, other := range t.entries {
		if other.stage == stageTaken && !other.started {
			signal(other.revoke)
		}
	}
	t.spawn()
}
