package poll

import (
	"maps"
	"time"
)

// The part of the in-flight table that the acker and the renewer use.

// flushDue reports whether a flush should not wait for a larger batch.
func (t *inflight) flushDue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed || len(t.release) > 0 || len(t.acks) >= t.opts.AckBatchSize
}

// unflushed returns how many acknowledgements, releases and counts wait for a flush.
func (t *inflight) unflushed() (acks, releases, counts int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.acks), len(t.release), len(t.counts)
}

// nextAcks takes at most n acknowledgements for a flush. The caller ends it with flushed or retry.
// The owner of fenced entries must be checked.
func (t *inflight) nextAcks(n int) (plain, fenced []*pendingEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	certain := t.opts.since(t.opts.MinIdle / 2)
	n = min(n, len(t.acks))
	for _, e := range t.acks[:n] {
		if e.lost || e.confirmed.Before(certain) {
			fenced = append(fenced, e)
		} else {
			plain = append(plain, e)
		}
	}
	if t.acks = t.acks[n:]; len(t.acks) == 0 {
		t.acks = nil
	}
	return plain, fenced
}

// nextReleases takes all releases for a flush. The caller ends it with flushed or retry.
func (t *inflight) nextReleases() []*pendingEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.release
	t.release = nil
	return list
}

// flushed removes the entries of a flush that is confirmed.
func (t *inflight) flushed(list []*pendingEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range list {
		if e.stage == stageAcking {
			t.confirmed++
			if e.acked != nil && !e.lost {
				e.acked()
			}
		}
		delete(t.entries, e.ID)
	}
	t.room.Signal()
}

// retry restores the entries of a flush that failed, or whose reply was lost.
func (t *inflight) retry(list []*pendingEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(list) > 0 && list[0].stage == stageAcking {
		t.acks = append(list, t.acks...)
	} else {
		t.release = append(list, t.release...)
	}
}

// nextCounts takes all delivery counts for a flush.
func (t *inflight) nextCounts() map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := t.counts
	t.counts = nil
	return counts
}

// retryCounts restores counts that could not be written. Newer ones are higher.
func (t *inflight) retryCounts(counts map[string]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(counts, t.counts)
	t.counts = counts
}

// renewable returns the entries to keep alive. An entry that waits for longer than LongestHold is
// released, because all workers or handlers here are stuck. An entry that is handled for longer
// than LongestHandlerHold is not kept alive. An entry that a closed gate holds for MinIdle is not
// either, because the gate of another instance may be open.
func (t *inflight) renewable(now time.Time) (due []*pendingEntry) {
	gated := t.opts.gated()
	t.mu.Lock()
	defer t.mu.Unlock()
	tooLong := func(e *pendingEntry, limit time.Duration) bool { return limit > 0 && now.Sub(e.since) > limit }
	waiting := t.buffer[:0]
	for _, e := range t.buffer {
		if tooLong(e, t.opts.LongestHold) {
			t.queueRelease(e)
		} else {
			waiting = append(waiting, e)
		}
	}
	clear(t.buffer[len(waiting):])
	t.buffer = waiting
	for _, e := range t.entries {
		limit := t.opts.LongestHold
		if e.started {
			limit = t.opts.LongestHandlerHold
		}
		switch {
		case e.lost || e.stage == stageReleasing:
		case tooLong(e, limit) && e.stage == stageTaken && !e.started:
			e.revoked = true
			signal(e.revoke)
		case tooLong(e, limit) && e.stage != stageAcking:
		case gated && e.stage == stageDelayed && tooLong(e, t.opts.MinIdle):
		case now.Sub(e.confirmed) > t.opts.MinIdle/3:
			due = append(due, e)
		}
	}
	for id, at := range t.leftPending { // after MinIdle it can be reclaimed
		if now.Sub(at) > t.opts.MinIdle {
			delete(t.leftPending, id)
		}
	}
	return due
}

// renewed records the answers of keep.lua, which was sent at sent.
func (t *inflight) renewed(due []*pendingEntry, answers []kept, sent time.Time) (renewed, lost, deleted int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, a := range answers {
		e := due[i]
		switch {
		case a == keptMine:
			e.confirmed = sent
			renewed++
		case e.stage == stageAcking || t.entries[e.ID] != e:
			// Its ack was sent meanwhile.
		case a == keptDeleted:
			t.lose(e)
			deleted++
		default:
			t.lose(e)
			lost++
		}
	}
	return renewed, lost, deleted
}

// lose records that another consumer has an entry, or that it was deleted.
func (t *inflight) lose(e *pendingEntry) {
	e.lost = true
	if e.stage == stageTaken && !e.started {
		signal(e.revoke)
	}
}

// revokeBehind revokes entries that no handler has and that were confirmed before the fence.
func (t *inflight) revokeBehind(fence time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		if e.stage == stageTaken && !e.started && e.confirmed.Before(fence) {
			e.revoked = true
			signal(e.revoke)
		}
	}
}

// activity returns the number of entries read and acknowledged, and of those in flight.
func (t *inflight) activity() (entries int64, inFlight int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read + t.confirmed, len(t.entries)
}

func (t *inflight) stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{
		InFlight: len(t.entries), Buffered: len(t.buffer) + t.delayed, Concurrency: t.limit,
		LastMessage: t.last, StartedAt: t.startedAt, Read: t.read, Acked: t.confirmed,
	}
}
