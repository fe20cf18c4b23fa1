package streams

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/plugins/redispoll"
)

// lanes make one call out of many concurrent ones, a stream. There are no goroutines of its own:
// the caller at the head of a stream's queue leads, which means that it makes one call for
// everybody queued so far and then hands the lead to the next one waiting.
type lanes struct {
	now func() time.Time

	mu sync.Mutex
	m  map[int64]*lane
}

type lane struct {
	queue []*request
	led   bool      // somebody leads, or has just been told to
	full  time.Time // until when the stream is taken to be full
}

type request struct {
	entry redispoll.Entry
	lead  chan struct{} // told to lead; capacity 1
	done  chan result   // capacity 1
}

type result struct {
	added bool
	err   error
}

const manyLanes = 1024 // above this, lanes that only remember a Full of the past are dropped

func newLanes() *lanes { return &lanes{now: time.Now, m: map[int64]*lane{}} }

// do adds e by call, which is given the entries of a batch and returns how many of them, a prefix,
// were added.
func (l *lanes) do(ctx context.Context, id int64, e redispoll.Entry, call func(context.Context, int64, []redispoll.Entry) (int, error)) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	req := &request{entry: e, lead: make(chan struct{}, 1), done: make(chan result, 1)}
	l.mu.Lock()
	ln := l.lane(id)
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

// serve makes one call for the head of the queue, then hands on the lead. The call outlives the
// leader's own context, since others wait for it; it is bounded by itself.
func (l *lanes) serve(ctx context.Context, id int64, ln *lane, call func(context.Context, int64, []redispoll.Entry) (int, error)) {
	l.mu.Lock()
	batch := ln.take()
	l.mu.Unlock()
	entries := make([]redispoll.Entry, len(batch))
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
	l.handOn(id, ln)
}

// take removes from the queue what fits into one call.
func (ln *lane) take() []*request {
	n := batchSize(len(ln.queue), func(i int) *redispoll.Entry { return &ln.queue[i].entry })
	batch := slices.Clone(ln.queue[:n])
	ln.queue = slices.Delete(ln.queue, 0, n)
	return batch
}

// handOn gives the lead to the head of the queue, or ends it. l.mu is held.
func (l *lanes) handOn(id int64, ln *lane) {
	if len(ln.queue) > 0 {
		ln.queue[0].lead <- struct{}{}
		return
	}
	ln.led = false
	if !l.now().Before(ln.full) && l.m[id] == ln {
		delete(l.m, id)
	}
}

// abandon takes a request back whose caller has gone. One that is in a call already may be added.
func (l *lanes) abandon(ctx context.Context, id int64, ln *lane, req *request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.Index(ln.queue, req); at >= 0 {
		ln.queue = slices.Delete(ln.queue, at, at+1)
		select {
		case <-req.lead:
			l.handOn(id, ln)
		default:
		}
	}
	return ctx.Err()
}

func (l *lanes) lane(id int64) *lane {
	if ln, ok := l.m[id]; ok {
		return ln
	}
	if len(l.m) >= manyLanes {
		for other, ln := range l.m {
			if !ln.led && !l.now().Before(ln.full) {
				delete(l.m, other)
			}
		}
	}
	ln := &lane{}
	l.m[id] = ln
	return ln
}

func (l *lanes) isFull(id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.m[id]
	return ok && l.now().Before(ln.full)
}

func (l *lanes) setFull(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lane(id).full = l.now().Add(fullMemory)
}
