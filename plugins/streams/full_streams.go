package streams

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// batcher makes one call out of many concurrent ones, per stream. It needs no goroutine. The caller
// at the head of a stream's queue leads: it makes one call for all queued requests, and then the
// next waiting caller leads.
type batcher struct {
	now func() time.Time

	mu sync.Mutex
	m  map[int64]*streamQueue
}

type streamQueue struct {
	queue []*request
	led   bool      // a request leads, or was just made the leader
	full  time.Time // until when the stream counts as full
}

type request struct {
	entry entry.Entry
	lead  chan struct{} // a token makes the request the leader; capacity 1
	done  chan result   // capacity 1
}

type result struct {
	added bool
	err   error
}

const maxQueues = 1024 // above this, batchers that only remember a Full of the past are dropped

func newBatcher() *batcher { return &batcher{now: time.Now, m: map[int64]*streamQueue{}} }

// do adds e by call. call gets the entries of a batch and returns how many of them, a prefix, it
// added.
func (l *batcher) do(ctx context.Context, id int64, e entry.Entry, call func(context.Context, int64, []entry.Entry) (int, error)) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	req := &request{entry: e, lead: make(chan struct{}, 1), done: make(chan result, 1)}
	l.mu.Lock()
	ln := l.queueOf(id)
	if l.now().Before(ln.full) {
		l.mu.Unlock()
		return false, nil
	}
	ln.queue = append(ln.queue, req)
	if !ln.led {
		ln.led = true
		req.lead <- struct{}{}
	}
	l.mu.Unlock()

	select {
	case r := <-req.done:
		return r.added, r.err
	case <-req.lead:
		l.serve(ctx, id, ln, call)
		r := <-req.done // the leader is the head of the queue, so its batch had it
		return r.added, r.err
	case <-ctx.Done():
		return false, l.abandon(ctx, id, ln, req)
	}
}

// serve makes one call for the head of the queue, then passes the leadership on. The call outlives
// the leader's own context, since others wait for it. It has a time limit of its own.
func (l *batcher) serve(ctx context.Context, id int64, ln *streamQueue, call func(context.Context, int64, []entry.Entry) (int, error)) {
	l.mu.Lock()
	batch := ln.take()
	l.mu.Unlock()
	entries := make([]entry.Entry, len(batch))
	for i, r := range batch {
		entries[i] = r.entry
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviveAttempts*callTimeout)
	defer cancel()
	n, err := call(ctx, id, entries)
	for i, r := range batch {
		if err != nil {
			r.done <- result{err: err}
		} else {
			r.done <- result{added: i < n}
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && n < len(batch) {
		ln.full = l.now().Add(fullMemory)
		for _, r := range ln.queue {
			r.done <- result{}
		}
		ln.queue = nil
	}
	l.passLeadership(id, ln)
}

// take removes the requests that fit into one call from the queue.
func (ln *streamQueue) take() []*request {
	n := batchSize(len(ln.queue), func(i int) *entry.Entry { return &ln.queue[i].entry })
	batch := slices.Clone(ln.queue[:n])
	ln.queue = slices.Delete(ln.queue, 0, n)
	return batch
}

// passLeadership makes the head of the queue the leader. Without one, no request leads. l.mu is
// held.
func (l *batcher) passLeadership(id int64, ln *streamQueue) {
	if len(ln.queue) > 0 {
		ln.queue[0].lead <- struct{}{}
		return
	}
	ln.led = false
	if !l.now().Before(ln.full) && l.m[id] == ln {
		delete(l.m, id)
	}
}

// abandon removes a request whose caller has returned. The entry of one in a call may be added.
func (l *batcher) abandon(ctx context.Context, id int64, ln *streamQueue, req *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.Index(ln.queue, req); at >= 0 {
		ln.queue = slices.Delete(ln.queue, at, at+1)
		select {
		case <-req.lead:
			l.passLeadership(id, ln)
		default:
		}
	}
	return ctx.Err()
}

func (l *batcher) queueOf(id int64) *streamQueue {
	if ln, ok := l.m[id]; ok {
		return ln
	}
	if len(l.m) >= maxQueues {
		for other, ln := range l.m {
			if !ln.led && !l.now().Before(ln.full) {
				delete(l.m, other)
			}
		}
	}
	ln := &streamQueue{}
	l.m[id] = ln
	return ln
}

func (l *batcher) isFull(id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.m[id]
	return ok && l.now().Before(ln.full)
}

func (l *batcher) setFull(id int64, memory time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queueOf(id).full = l.now().Add(memory)
}
