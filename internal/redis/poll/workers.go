package poll

import (
	"context"
	"log/slog"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// workers are the worker pool of a reader. Each worker delivers one entry at a time.
type workers struct {
	*shared
	out        chan<- *message.Message
	abandoned  chan struct{} // closed: workers stop waiting for handlers
	once       sync.Once
	unfinished atomic.Int64 // messages whose handlers did not return in time
	pool       sync.WaitGroup
	offering   sync.Mutex // Ordered: from taking an entry until a handler has received it
}

func newWorkers(s *shared, out chan<- *message.Message) *workers {
	return &workers{shared: s, out: out, abandoned: make(chan struct{})}
}

// abandon ends the wait for handlers.
func (w *workers) abandon() { w.once.Do(func() { close(w.abandoned) }) }

// start starts a worker. It ends when nothing is buffered.
func (w *workers) start(worker int) { w.pool.Go(func() { w.run(worker) }) }

func (w *workers) run(worker int) {
	labels := pprof.Labels("stream", w.Stream, "worker", strconv.Itoa(worker))
	// The contexts of messages have the labels too, so that a handler can set them on its
	// goroutine.
	pprof.Do(w.opts.Base, labels, func(ctx context.Context) {
		revoke := make(chan struct{}, 1)
		for e := w.next(revoke); e != nil; e = w.next(revoke) {
			w.m.inFlight.Inc()
			w.deliver(ctx, e, revoke)
			w.m.inFlight.Dec()
		}
	})
}

// next returns the next entry. With Ordered, it holds offering until the entry was offered.
func (w *workers) next(revoke chan<- struct{}) *pendingEntry {
	if !w.opts.Ordered {
		return w.inflight.next(revoke)
	}
	w.offering.Lock()
	e := w.inflight.next(revoke)
	if e == nil {
		w.offering.Unlock()
	}
	return e
}

// deliver delivers an entry once, or several times when this is the only worker.
func (w *workers) deliver(ctx context.Context, e *pendingEntry, revoke <-chan struct{}) {
	for held := w.opts.Ordered; ; held = false {
		msg, cancel := w.message(ctx, e)
		offered := w.offer(e, msg, revoke)
		if held {
			w.offering.Unlock()
		}
		if !offered {
			cancel()
			return
		}
		select {
		case <-msg.Acked():
			cancel()
			w.inflight.ack(e)
			return
		case <-msg.Nacked():
			cancel()
			wait, again := w.inflight.nack(e)
			if !again || !w.delay(e, wait, revoke) {
				return
			}
		case <-w.abandoned:
			w.leaveBehind(e, msg, cancel)
			return
		}
	}
}

func (w *workers) message(ctx context.Context, e *pendingEntry) (*message.Message, context.CancelFunc) {
	decode := entry.Decode
	if w.opts.Fields {
		decode = entry.DecodeFields
	}
	msg, err := decode(e.XMessage)
	if err != nil && e.nacks == 0 {
		w.m.malformed.Inc()
		w.log().Warn("malformed entry", slog.String(logs.StreamEntryID, e.ID), logs.Err(err))
	}
	d := pipeline.Delivery{
		Origin: pipeline.Origin{
			Kind: Kind, Source: w.Stream, Group: w.Group, Key: msg.Metadata.Get(pipeline.MetaKey), Position: entry.Position(w.Stream, e.ID),
		},
		Delivered: e.delivered + int64(e.nacks), Excused: int64(e.excused), Malformed: err,
	}
	if w.opts.Ordered {
		d.Held = func() bool { return w.inflight.mayStart(e) }
	}
	ctx, cancel := context.WithCancel(pipeline.WithDelivery(ctx, d))
	msg.SetContext(ctx)
	return msg, cancel
}

// offer sends msg to a handler. False means that no handler received it.
func (w *workers) offer(e *pendingEntry, msg *message.Message, revoke <-chan struct{}) bool {
	for {
		select {
		case w.out <- msg:
			w.inflight.started(e)
			return true
		case <-w.inflight.stopping:
			w.inflight.releaseTaken(e)
			return false
		case <-revoke: // perhaps for the worker's entry before
			if !w.inflight.stillMine(e) {
				return false
			}
		}
	}
}

// delay keeps an entry in its worker until the next delivery, so that no entry overtakes it. False
// means that there is none.
func (w *workers) delay(e *pendingEntry, d time.Duration, revoke <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			switch {
			case !w.inflight.stillMine(e):
				return false
			case w.opts.gated():
				t.Reset(gatePoll)
			default:
				w.m.redeliveries.Inc()
				return true
			}
		case <-w.inflight.stopping:
			w.inflight.releaseTaken(e)
			return false
		case <-revoke:
			if !w.inflight.stillMine(e) {
				return false
			}
		}
	}
}

// leaveBehind ends the wait for a handler that did not return in time. Its entry stays pending.
func (w *workers) leaveBehind(e *pendingEntry, msg *message.Message, cancel context.CancelFunc) {
	select {
	case <-msg.Acked(): // in the same moment
		cancel()
		w.inflight.ack(e)
		return
	default:
	}
	if w.opts.CancelUnfinished {
		cancel()
	}
	w.inflight.abandon(e)
	w.unfinished.Add(1)
}
