package poll

import (
	"context"
	"log/slog"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// spawn starts the slots that are wanted and not running; the mutex is held.
func (r *Reader) spawn() {
	for i := range r.book.slots {
		if i == len(r.running) {
			r.running = append(r.running, false)
		}
		if !r.running[i] {
			r.running[i] = true
			r.slots.Go(func() { r.slot(i) })
		}
	}
}

// slot handles one message after the other until it is one slot too many or the reader stops.
func (r *Reader) slot(i int) {
	labels := pprof.Labels("stream", r.cfg.Stream, "slot", strconv.Itoa(i))
	// The messages' contexts carry the labels too: a handler's goroutine can take them over.
	pprof.Do(r.cfg.Base, labels, func(ctx context.Context) {
		recall := make(chan struct{}, 1)
		for h := r.next(i, recall); h != nil; h = r.next(i, recall) {
			r.handle(ctx, h, recall)
			r.m.inFlight.Dec()
		}
	})
}

// next waits for an entry; nil ends slot i.
func (r *Reader) next(i int, recall chan<- struct{}) *held {
	r.mu.Lock()
	defer r.mu.Unlock()
	signal(r.freed)
	for {
		if r.draining || i >= r.book.slots {
			r.running[i] = false
			r.work.Signal() // it may have been meant for an entry
			return nil
		}
		now := time.Now()
		if len(r.book.buffer) > 0 && r.fenced() {
			r.awaitFence()
			continue
		}
		h, stale := r.book.take(r.since(now, r.cfg.MinIdle*2/3), now, recall)
		if stale {
			r.reread = true
			signal(r.wake)
		}
		if h != nil {
			r.m.inFlight.Inc()
			return h
		}
		r.work.Wait()
	}
}

// fenced reports whether nothing may be begun for now.
func (r *Reader) fenced() bool { return r.cfg.Fence != nil && r.cfg.Fence().After(time.Now()) }

// awaitFence waits until there is a reason to ask the fence again, at most gatePoll; the mutex is held.
func (r *Reader) awaitFence() {
	if !r.waiting {
		r.waiting = true
		time.AfterFunc(gatePoll, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.waiting = false
			r.work.Broadcast()
		})
	}
	r.work.Wait()
}

// since returns the time after which an entry must have been confirmed to be surely ours: at most so long ago, and not
// before the fence.
func (r *Reader) since(now time.Time, ago time.Duration) time.Time {
	fresh := now.Add(-ago)
	if r.cfg.Fence == nil {
		return fresh
	}
	if fence := r.cfg.Fence(); fence.After(fresh) {
		return fence
	}
	return fresh
}

// handle takes h through one delivery, or through several when this is the only slot.
func (r *Reader) handle(ctx context.Context, h *held, recall <-chan struct{}) {
	for {
		msg, err := entry.Decode(h.entry)
		if err != nil && h.nacks == 0 {
			r.m.malformed.Inc()
			r.log.Warn("malformed entry", slog.String(pipeline.LogStreamEntryID, h.entry.ID), pipeline.Err(err))
		}
		delivery, cancel := context.WithCancel(pipeline.WithOrigin(ctx, pipeline.Origin{
			Kind: Kind, Source: r.cfg.Stream, Group: r.cfg.Group, Key: msg.Metadata.Get(pipeline.MetaKey),
			Position: entry.Position(r.cfg.Stream, h.entry.ID), Delivered: h.delivered + int64(h.nacks), Malformed: err,
		}))
		msg.SetContext(delivery)

		if !r.offer(h, msg, recall) {
			cancel()
			return
		}
		select {
		case <-msg.Acked():
			cancel()
			r.acked(h)
			return
		case <-msg.Nacked():
			cancel()
			wait, again := r.nacked(h)
			if !again || !r.waitHere(h, wait, recall) {
				return
			}
		case <-r.abandoned:
			r.leaveBehind(h, msg, cancel)
			return
		}
	}
}

// offer hands msg over; false means that it was not, and that h is settled: released or somebody else's.
func (r *Reader) offer(h *held, msg *message.Message, recall <-chan struct{}) bool {
	for {
		select {
		case r.out <- msg:
			r.mu.Lock()
			r.book.begin(h, time.Now())
			r.mu.Unlock()
			return true
		case <-r.stopping:
			r.withdraw(h)
			return false
		case <-recall:
			if r.recalled(h) || !r.stillMine(h) {
				return false
			}
		}
	}
}

// stillMine reports whether h may be offered once more. What may be another's by now is given up here, and looked up again.
func (r *Reader) stillMine(h *held) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !h.lost && !h.confirmed.Before(r.since(time.Now(), r.cfg.MinIdle*2/3)) {
		return true
	}
	if r.draining {
		r.book.withdraw(h)
		signal(r.flush)
		return false
	}
	r.book.abandon(h)
	r.reread = true
	signal(r.wake)
	return false
}

// waitHere holds h in its slot until its next delivery, so that nothing overtakes it; false means that h is settled.
func (r *Reader) waitHere(h *held, d time.Duration, recall <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if !r.stillMine(h) {
				return false
			}
			r.m.redeliveries.Inc()
			return true
		case <-r.stopping:
			r.withdraw(h)
			return false
		case <-recall:
			if r.recalled(h) {
				return false
			}
		}
	}
}

func (r *Reader) acked(h *held) {
	r.mu.Lock()
	r.book.settle(h)
	n := len(r.book.acks)
	r.mu.Unlock()
	if n == 1 || n >= r.cfg.AckBatchSize {
		signal(r.flush)
	}
}

func (r *Reader) withdraw(h *held) {
	r.mu.Lock()
	r.book.withdraw(h)
	r.mu.Unlock()
	signal(r.flush)
}

// recalled settles h when it was recalled; a recall may be meant for the slot's entry before.
func (r *Reader) recalled(h *held) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !h.lost && !h.recalled {
		return false
	}
	r.book.withdraw(h)
	signal(r.flush)
	return true
}

// nacked decides what becomes of h: again is true when this slot delivers it again after wait.
func (r *Reader) nacked(h *held) (wait time.Duration, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h.nacks++
	h.begun = false
	if r.draining {
		r.book.withdraw(h)
		signal(r.flush)
		return 0, false
	}
	if h.lost {
		r.book.withdraw(h)
		return 0, false
	}
	if h.nacks > r.cfg.MaxRedeliveries {
		r.book.leave(h, time.Now())
		r.m.leftPending.Inc()
		if h.nacks > 1 { // all but the first were redeliveries here
			r.counts[h.entry.ID] = h.delivered + int64(h.nacks) - 1
			signal(r.flush)
		}
		return 0, false
	}
	wait = r.cfg.Redelivery.Delay(h.nacks)
	if r.book.slots == 1 {
		return wait, true
	}
	// With several slots there is no order to keep, and a failing message must not hold a slot.
	r.book.delay(h)
	h.ripens = time.AfterFunc(wait, func() { r.ripen(h) })
	return 0, false
}

func (r *Reader) ripen(h *held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.book.ripen(h) {
		r.m.redeliveries.Inc()
		r.work.Signal()
	}
}

// leaveBehind gives up on a message whose handler has not finished in time. Its entry stays pending.
func (r *Reader) leaveBehind(h *held, msg *message.Message, cancel context.CancelFunc) {
	select {
	case <-msg.Acked(): // in the same moment
		cancel()
		r.acked(h)
		return
	default:
	}
	if r.cfg.CancelUnfinished {
		cancel()
	}
	r.mu.Lock()
	r.book.abandon(h)
	r.behind++
	r.mu.Unlock()
}
