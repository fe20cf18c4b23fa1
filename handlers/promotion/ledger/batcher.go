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
	flush  func(ctx context.Context, batch []*batchItem[Q, R]) // finishes every call
	// abandoned gets results without a caller; may be nil.
	abandoned func(call *batchItem[Q, R])

	queue      chan *batchItem[Q, R]
	collecting sync.Mutex // one flusher collects at a time
	flushing   atomic.Int32
	flushEnded chan struct{}
	closing    chan struct{}
	stopped    chan struct{}
	wg         sync.WaitGroup
}

// batchItem is the request of one caller, with its result.
type batchItem[Q, R any] struct {
	key   rules.Key // of the payout
	req   Q
	res   R
	err   error
	state atomic.Int32
	done  chan struct{}
}

const (
	itemWaiting int32 = iota
	itemDone
	itemAbandoned
)

// finish passes the result to the caller. The flusher calls it once.
func (c *batchItem[Q, R]) finish(res R, err error) {
	c.res, c.err = res, err
	c.state.CompareAndSwap(itemWaiting, itemDone)
	close(c.done)
}

// newBatcher starts the flushers. The end of ctx ends their flushes.
func newBatcher[Q, R any](ctx context.Context, flushers, size int, linger time.Duration,
	flush func(context.Context, []*batchItem[Q, R]), orphan func(*batchItem[Q, R])) *batcher[Q, R] {
	c := &batcher[Q, R]{max: size, linger: linger, flush: flush, abandoned: orphan,
		queue: make(chan *batchItem[Q, R], size), flushEnded: make(chan struct{}, 1), closing: make(chan struct{}), stopped: make(chan struct{})}
	for range flushers {
		c.wg.Go(func() { c.run(ctx) })
	}
	return c
}

// do submits req and waits for its result. When ctx ends first, the request may or may not be
// carried out.
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
		if k.state.CompareAndSwap(itemWaiting, itemAbandoned) {
			return none, ctx.Err()
		}
		<-k.done // finish is running
		return k.res, k.err
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
			c.flush(ctx, batch)
			c.flushing.Add(-1)
			select {
			case c.flushEnded <- struct{}{}:
			default:
			}
			if c.abandoned != nil {
				for _, k := range batch {
					if k.state.Load() == itemAbandoned {
						c.abandoned(k)
					}
				}
			}
		}
		if !more {
			return
		}
	}
}

// collect returns the next batch. more is false when the batcher is closing and the queue is empty.
func (c *batcher[Q, R]) collect() (batch []*batchItem[Q, R], more bool) {
	c.collecting.Lock()
	defer c.collecting.Unlock()
	take := func(k *batchItem[Q, R]) {
		if k.state.Load() == itemWaiting {
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
