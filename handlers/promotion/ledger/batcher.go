package ledger

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// batcher collects the items of concurrent callers into batches. They are flushed at once when no
// flush is running. Otherwise they wait for its end, at most linger, and are flushed together.
// After a batch of pacedBatch items the next one goes a pause later, unless it is full. Few and
// large batches take a fraction of the server's time.
type batcher[Q, R any] struct {
	max    int
	linger time.Duration
	// keeps: items are carried out although their caller has left. Otherwise queued items are
	// removed when ctx ends, and collected ones are waited for. So no item loses its caller.
	keeps bool
	// flush finishes all items except those that it returns, whose promotions are locked.
	flush func(ctx context.Context, batch []*batchItem[Q, R]) (aside []*batchItem[Q, R])
	// flushAside finishes those, in one goroutine, so that a lock delays no flusher.
	flushAside func(ctx context.Context, batch []*batchItem[Q, R])

	guard        sync.Mutex // guards the next two
	aside        []*batchItem[Q, R]
	asideRunning bool

	queue      chan []*batchItem[Q, R]
	collecting chan struct{}      // capacity 1: one flusher collects at a time
	surplus    []*batchItem[Q, R] // did not fit into the last batch; guarded by collecting
	next       time.Time          // when a batch that is not full may go; guarded by collecting
	flushing   atomic.Int32
	flushEnded chan struct{}
	closing    chan struct{}
	stopped    chan struct{}
	wg         sync.WaitGroup
}

const (
	pacedBatch   = 4
	longestPause = 5 * time.Millisecond
)

// batchItem is one request, with its result.
type batchItem[Q, R any] struct {
	key    payouts.Key // of the payout
	req    Q
	res    R
	err    error
	ended  bool // by the ordinary statement
	caller *caller
}

// caller waits for its items.
type caller struct {
	taken atomic.Bool   // the items, by a flusher or by the caller, which leaves
	left  atomic.Int32  // items without a result
	done  chan struct{} // closed when none is left
}

// finish notes that the item has its result.
func (k *batchItem[Q, R]) finish() {
	if k.caller.left.Add(-1) == 0 {
		close(k.caller.done)
	}
}

// newBatch returns one item per request. Invalid ones have their error.
func newBatch[Q, R any](n int, item func(i int) (payouts.Key, Q, error)) []*batchItem[Q, R] {
	batch := make([]*batchItem[Q, R], n)
	for i := range batch {
		batch[i] = &batchItem[Q, R]{}
		batch[i].key, batch[i].req, batch[i].err = item(i)
	}
	return batch
}

// newBatcher starts the flushers. The end of ctx ends their flushes.
func newBatcher[Q, R any](ctx context.Context, flushers, size int, linger time.Duration,
	flush func(context.Context, []*batchItem[Q, R]) []*batchItem[Q, R], flushAside func(context.Context, []*batchItem[Q, R])) *batcher[Q, R] {
	c := &batcher[Q, R]{max: size, linger: linger, flush: flush, flushAside: flushAside,
		queue: make(chan []*batchItem[Q, R], size), collecting: make(chan struct{}, 1), flushEnded: make(chan struct{}, 1), closing: make(chan struct{}), stopped: make(chan struct{})}
	for range flushers {
		c.wg.Go(func() { c.run(ctx) })
	}
	return c
}

// one submits a request and returns its result.
func (c *batcher[Q, R]) one(ctx context.Context, key payouts.Key, req Q) (R, error) {
	k := &batchItem[Q, R]{key: key, req: req}
	if err := c.submit(ctx, k); err != nil {
		var none R
		return none, err
	}
	return k.res, k.err
}

// all submits a caller's batch, in transactions of at most max items, without those that have an
// error.
func (c *batcher[Q, R]) all(ctx context.Context, batch []*batchItem[Q, R]) {
	valid := slices.DeleteFunc(slices.Clone(batch), func(k *batchItem[Q, R]) bool { return k.err != nil })
	for items := range slices.Chunk(valid, c.max) {
		if err := c.submit(ctx, items...); err != nil {
			for _, k := range items {
				k.err = err
			}
		}
	}
}

// submit waits until the items have their results. After an error they may or may not be carried
// out if keeps is set, and are not otherwise.
func (c *batcher[Q, R]) submit(ctx context.Context, items ...*batchItem[Q, R]) error {
	w := &caller{done: make(chan struct{})}
	w.left.Store(int32(len(items)))
	for _, k := range items {
		k.caller = w
	}
	select {
	case <-c.closing:
		return ErrClosed
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case c.queue <- items:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closing:
		return ErrClosed
	}
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		if c.keeps || w.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-w.done
		return nil
	case <-c.stopped:
		select {
		case <-w.done:
			return nil
		default:
			return ErrClosed
		}
	}
}

// close refuses new items, flushes the queue and waits for the flushers.
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
	take := func(items []*batchItem[Q, R]) {
		switch {
		case !items[0].caller.taken.CompareAndSwap(false, true): // removed by its caller
		case len(batch)+len(items) > c.max:
			c.surplus = items
		default:
			batch = append(batch, items...)
		}
	}
	if batch, c.surplus = c.surplus, nil; len(batch) == 0 {
		select {
		case items := <-c.queue:
			take(items)
		case <-c.closing:
			select {
			case items := <-c.queue:
				take(items)
			default:
				return nil, false
			}
		}
	}
	began := time.Now()
	timer := time.NewTimer(c.linger)
	defer timer.Stop()
	for len(batch) < c.max && c.surplus == nil {
		select {
		case items := <-c.queue:
			take(items)
			continue
		default:
		}
		end := c.next
		if c.flushing.Load() > 0 {
			end = began.Add(c.linger)
		}
		if wait := time.Until(end); wait > 0 {
			timer.Reset(wait)
		} else {
			break
		}
		select {
		case items := <-c.queue:
			take(items)
			continue
		case <-c.flushEnded:
			continue
		case <-timer.C:
		case <-c.closing:
		}
		break
	}
	c.next = time.Time{}
	if len(batch) >= pacedBatch {
		c.next = time.Now().Add(min(c.linger, longestPause))
	}
	return batch, true
}
