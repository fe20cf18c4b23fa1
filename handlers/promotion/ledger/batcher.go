package ledger

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

// batcher collects single requests into batches. A request is flushed at once when no flush is
// running. Otherwise it waits for the end of that flush, at most linger, and is flushed together
// with the others that wait. Every caller gets its own result.
type batcher[Q, R any] struct {
	max    int
	linger time.Duration
	// cancels: a request whose ctx ends is removed, or waited for if it was collected. So
	// nothing is carried out without its caller.
	cancels bool
	// flush finishes all items except those that it returns, which may meet a lock.
	flush func(ctx context.Context, batch []*batchItem[Q, R]) (aside []*batchItem[Q, R])
	// flushAside finishes those, in one goroutine, so that a lock delays no flusher.
	flushAside func(ctx context.Context, batch []*batchItem[Q, R])

	guard        sync.Mutex // guards the next two
	aside        []*batchItem[Q, R]
	asideRunning bool

	queue      chan *batchItem[Q, R]
	collecting chan struct{} // capacity 1: one flusher collects at a time
	flushing   atomic.Int32
	flushEnded chan struct{}
	closing    chan struct{}
	stopped    chan struct{}
	wg         sync.WaitGroup
}

// newBatcher starts the flushers. The end of ctx ends their flushes.
func newBatcher[Q, R any](ctx context.Context, flushers, size int, linger time.Duration,
	flush func(context.Context, []*batchItem[Q, R]) []*batchItem[Q, R], flushAside func(context.Context, []*batchItem[Q, R])) *batcher[Q, R] {
	c := &batcher[Q, R]{max: size, linger: linger, flush: flush, flushAside: flushAside,
		queue: make(chan *batchItem[Q, R], size), collecting: make(chan struct{}, 1), flushEnded: make(chan struct{}, 1), closing: make(chan struct{}), stopped: make(chan struct{})}
	for range flushers {
		c.wg.Go(func() { c.run(ctx) })
	}
	return c
}

// do submits req and waits for its result. When ctx ends first, the request may or may not be
// carried out, unless cancels is set.
func (c *batcher[Q, R]) do(ctx context.Context, key rules.Key, req Q) (R, error) {
	var none R
	k := &batchItem[Q, R]{key: key, req: req, done: make(chan struct{})}
	select {
	case <-c.closing:
		return none, ErrClosed
	default:
	}
	select {
	case c.queue <- k:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-c.closing:
		return none, ErrClosed
	}
	select {
	case <-k.done:
		return k.res, k.err
	case <-ctx.Done():
		if c.cancels && !k.taken.CompareAndSwap(false, true) {
			<-k.done
			return k.res, k.err
		}
		return none, ctx.Err()
	case <-c.stopped:
		select {
		case <-k.done:
			return k.res, k.err
		default:
			return none, ErrClosed
		}
	}
}

// close refuses new requests, flushes the queue and waits for the flushers.
func (c *batcher[Q, R]) close() {
	close(c.closing)
	c.wg.Wait()
	close(c.stopped)
}

func (c *batcher[Q, R]) run(ctx context.Context) {
	for {
		batch, more := c.collect()
		if len(batch) > 0 {
			c.flushing.Add(1)
			aside := c.flush(ctx, batch)
			c.flushing.Add(-1)
			c.setAside(ctx, aside)
			select {
			case c.flushEnded <- struct{}{}:
			default:
			}
		}
		if !more {
			return
		}
	}
}

// setAside has items flushed by the goroutine for locks.
func (c *batcher[Q, R]) setAside(ctx context.Context, items []*batchItem[Q, R]) {
	c.guard.Lock()
	defer c.guard.Unlock()
	c.aside = append(c.aside, items...)
	if len(c.aside) > 0 && !c.asideRunning {
		c.asideRunning = true
		c.wg.Go(func() { c.runAside(ctx) })
	}
}

func (c *batcher[Q, R]) runAside(ctx context.Context) {
	for {
		c.guard.Lock()
		batch := c.aside
		c.aside = nil
		c.asideRunning = len(batch) > 0
		c.guard.Unlock()
		if len(batch) == 0 {
			return
		}
		c.flushAside(ctx, batch)
	}
}

// collect returns the next batch. more is false when the batcher is closing and the queue is empty.
func (c *batcher[Q, R]) collect() (batch []*batchItem[Q, R], more bool) {
	c.collecting <- struct{}{}
	defer func() { <-c.collecting }()
	take := func(k *batchItem[Q, R]) {
		if k.taken.CompareAndSwap(false, true) {
			batch = append(batch, k)
		}
	}
	select {
	case k := <-c.queue:
		take(k)
	case <-c.closing:
		select {
		case k := <-c.queue:
			take(k)
		default:
			return nil, false
		}
	}
	var timer <-chan time.Time
	for len(batch) < c.max {
		select {
		case k := <-c.queue:
			take(k)
			continue
		default:
		}
		if c.flushing.Load() == 0 || c.linger == 0 {
			break
		}
		if timer == nil {
			timer = time.After(c.linger)
		}
		select {
		case k := <-c.queue:
			take(k)
			continue
		case <-c.flushEnded:
			continue
		case <-timer:
		case <-c.closing:
		}
		break
	}
	return batch, true
}
