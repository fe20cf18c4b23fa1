package poll

import (
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// stage is where an entry is on its way through a reader.
type stage uint8

const (
	stageBuffered  stage = iota // read, no slot has taken it
	stageHeld                   // a slot has it
	stageDelayed                // nacked, waits for its next delivery
	stageAcking                 // acknowledged, the XACK is not confirmed
	stageReturning              // not to be begun here, the releasing is not confirmed
)

// held is one entry that this reader answers for.
type held struct {
	entry     goredis.XMessage
	delivered int64
	stage     stage
	nacks     int             // by this reader
	since     time.Time       // when it was read, then when its handler was given it
	confirmed time.Time       // the latest moment at which it was surely ours: before the command that said so was sent
	lost      bool            // somebody else has it, or it was deleted: not renewed, its ack is fenced
	begun     bool            // a handler was given it
	recalled  bool            // it has waited too long for a handler: the slot gives it back
	recall    chan<- struct{} // tells the slot that offers it to look at lost
	ripens    *time.Timer     // while stageDelayed
	acked     func()          // called when its acknowledgement is confirmed; may be nil
}

// book keeps the books of one reader: which entries are where, and how many may be. It does no I/O and
// is not safe for concurrent use; the reader guards it with its mutex.
//
// An entry is in entries from the moment it was read until its XACK or its return is confirmed, or until
// it is left pending. An entry that is in the book is never delivered a second time.
type book struct {
	slots   int // how many may be handled at once
	batch   int // how many one read may bring
	busy    int // slots that have an entry
	delayed int // entries in stageDelayed

	entries   map[string]*held
	buffer    []*held              // stageBuffered, in the order of reading
	acks      []*held              // stageAcking and not in a flush
	returns   []*held              // stageReturning and not in a flush
	left      map[string]time.Time // left pending here after too many nacks: not taken up again by a re-read
	flushing  int                  // entries of a flush under way
	read      int64                // entries that came in, duplicates not counted
	confirmed int64                // entries whose ack is confirmed
}

func newBook(slots, batch int) *book {
	return &book{slots: slots, batch: batch, entries: map[string]*held{}, left: map[string]time.Time{}}
}

// maxUnflushed stops the reading while acknowledgements can't be flushed.
const maxUnflushed = 4096

// canRead reports whether a read may be sent: a slot would be idle otherwise, and what waits for other
// reasons is bounded too.
func (b *book) canRead() bool {
	return b.busy+len(b.buffer) < b.slots && b.delayed < b.slots+b.batch && len(b.acks) < maxUnflushed
}

// free is how many more entries fit: idle slots and the places of one batch ahead.
func (b *book) free() int { return max(0, b.slots+b.batch-b.busy-len(b.buffer)-b.delayed) }

// add takes an entry in that the server has just given to this consumer. It answers false when the
// entry is here already; then it is only known to be ours at sent.
func (b *book) add(e goredis.XMessage, delivered int64, sent, now time.Time) bool {
	if h, ok := b.entries[e.ID]; ok {
		h.confirmed, h.lost = sent, false
		return false
	}
	delete(b.left, e.ID)
	h := &held{entry: e, delivered: max(delivered, 1), since: now, confirmed: sent}
	b.entries[e.ID] = h
	b.buffer = append(b.buffer, h)
	b.read++
	return true
}

// missing returns the ids of those of the consumer's pending entries that are not in flight, and were not left pending here.
func (b *book) missing(own []goredis.XPendingExt) (ids []string) {
	for _, p := range own {
		h, inFlight := b.entries[p.ID]
		_, left := b.left[p.ID]
		if !left && (!inFlight || h.lost) {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// take gives the next entry to a slot that listens to recall, or nil. An entry that was not confirmed since fresh may be
// somebody else's by now: it is dropped, and stale answers true so that the reader looks again.
func (b *book) take(fresh, now time.Time, recall chan<- struct{}) (h *held, stale bool) {
	for len(b.buffer) > 0 {
		h := b.buffer[0]
		b.buffer[0] = nil
		if b.buffer = b.buffer[1:]; len(b.buffer) == 0 {
			b.buffer = nil
		}
		if h.lost || h.confirmed.Before(fresh) {
			stale = stale || !h.lost
			delete(b.entries, h.entry.ID)
			continue
		}
		h.stage, h.since, h.begun, h.recalled, h.recall = stageHeld, now, false, false, recall
		b.busy++
		return h, stale
	}
	return nil, stale
}

// begin says that a handler has been given h.
func (b *book) begin(h *held, now time.Time) { h.begun, h.since = true, now }

// settle ends a slot's work on h with an acknowledgement.
func (b *book) settle(h *held) {
	b.busy--
	h.stage = stageAcking
	b.acks = append(b.acks, h)
}

// withdraw ends a slot's work on h, which was not begun or has failed while the reader stops.
func (b *book) withdraw(h *held) {
	b.busy--
	b.giveBack(h)
}

// leave ends a slot's work on h, which stays pending until somebody reclaims it.
func (b *book) leave(h *held, now time.Time) {
	b.busy--
	delete(b.entries, h.entry.ID)
	b.left[h.entry.ID] = now
}

// delay ends a slot's work on h for now.
func (b *book) delay(h *held) {
	b.busy--
	b.delayed++
	h.stage = stageDelayed
}

// ripen puts a delayed entry in front of the buffer; it answers false when h is not delayed any more.
func (b *book) ripen(h *held) bool {
	if h.stage != stageDelayed {
		return false
	}
	b.delayed--
	h.stage = stageBuffered
	b.buffer = append([]*held{h}, b.buffer...)
	return true
}

// abandon forgets an entry that a slot gave up on; it stays pending.
func (b *book) abandon(h *held) {
	b.busy--
	delete(b.entries, h.entry.ID)
}

// returnUnbegun releases everything that no slot has: the buffer and what waits for redelivery.
func (b *book) returnUnbegun() {
	for _, h := range b.entries {
		if h.stage == stageDelayed {
			b.delayed--
			if h.ripens != nil {
				h.ripens.Stop()
			}
			b.giveBack(h)
		}
	}
	for _, h := range b.buffer {
		b.giveBack(h)
	}
	b.buffer = nil
}

func (b *book) giveBack(h *held) {
	h.stage = stageReturning // also of a lost one: its redelivery must not ripen
	if h.lost {
		delete(b.entries, h.entry.ID)
		return
	}
	b.returns = append(b.returns, h)
}

// forgetUnbegun drops what no slot has without giving it back: the stream is gone.
func (b *book) forgetUnbegun() {
	b.returnUnbegun()
	b.flushed(b.nextReturns())
}

// nextAcks takes at most n acknowledgements for a flush. Every one is answered for by flushed or retry.
func (b *book) nextAcks(n int) []*held {
	n = min(n, len(b.acks))
	out := b.acks[:n:n]
	if b.acks = b.acks[n:]; len(b.acks) == 0 {
		b.acks = nil
	}
	b.flushing += n
	return out
}

// nextReturns takes everything that is to be released.
func (b *book) nextReturns() []*held {
	out := b.returns
	b.returns = nil
	b.flushing += len(out)
	return out
}

// flushed says that the flush of hs is confirmed.
func (b *book) flushed(hs []*held) {
	for _, h := range hs {
		if h.stage == stageAcking {
			b.confirmed++
			if h.acked != nil && !h.lost {
				h.acked()
			}
		}
		delete(b.entries, h.entry.ID)
	}
	b.flushing -= len(hs)
}

// retry puts hs back: their flush failed or its answer was lost.
func (b *book) retry(hs []*held) {
	var acks, returns []*held
	for _, h := range hs {
		if h.stage == stageAcking {
			acks = append(acks, h)
		} else {
			returns = append(returns, h)
		}
	}
	b.acks = append(acks, b.acks...)
	b.returns = append(returns, b.returns...)
	b.flushing -= len(hs)
}

// lose says that h is somebody else's or deleted. When no handler has begun it, none will.
func (b *book) lose(h *held) {
	h.lost = true
	if h.stage == stageHeld && !h.begun {
		signal(h.recall)
	}
}

// renewable returns the entries that must be kept alive: ours, last confirmed before due, and begun by a handler
// at oldestRun or later, or waiting since oldestWait or later. What has waited for a slot or a handler since before
// that is released: here everything is stuck, elsewhere perhaps not.
func (b *book) renewable(due, oldestRun, oldestWait time.Time) (out []*held) {
	waiting := b.buffer[:0]
	for _, h := range b.buffer {
		if h.since.Before(oldestWait) {
			b.giveBack(h)
		} else {
			waiting = append(waiting, h)
		}
	}
	clear(b.buffer[len(waiting):])
	b.buffer = waiting
	for _, h := range b.entries {
		oldest := oldestWait
		if h.begun {
			oldest = oldestRun
		}
		switch {
		case h.lost || h.stage == stageReturning:
		case h.since.Before(oldest) && h.stage == stageHeld && !h.begun:
			h.recalled = true
			signal(h.recall)
		case h.since.Before(oldest) && h.stage != stageAcking:
		case h.confirmed.Before(due):
			out = append(out, h)
		}
	}
	return out
}

// forgetLeft forgets what was left pending before t: it can be reclaimed by now.
func (b *book) forgetLeft(t time.Time) {
	for id, at := range b.left {
		if at.Before(t) {
			delete(b.left, id)
		}
	}
}

// unsettled is how many entries this reader still answers for.
func (b *book) unsettled() int { return len(b.entries) }

// idsOf returns the entry ids of hs.
func idsOf(hs []*held) []string {
	ids := make([]string, len(hs))
	for i, h := range hs {
		ids[i] = h.entry.ID
	}
	return ids
}
