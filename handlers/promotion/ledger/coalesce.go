package ledger

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// coalescer gathers single calls into batches. When no flush is under way a call is flushed at once;
// otherwise what gathers until it ends goes together. A flush that is stuck holds nobody up for longer than
// linger: then the next one runs beside it. Every caller gets its own result.
type coalescer[Q, R any] struct {
	max    int
	linger time.Duration
	flush  func(ctx context.Context, batch []*call[Q, R]) // finishes every call
	orphan func(call *call[Q, R])                         // a result whose caller had gone; may be nil

	queue   chan *call[Q, R]
	collect sync.Mutex // one flusher gathers at a time
	flying  atomic.Int32
	landed  chan struct{} // a flush has ended
	closing chan struct{}
	stopped chan struct{}
	wg      sync.WaitGroup
}

// call is one caller's request and result.
type call[Q, R any] struct {
	req   Q
	res   R
	err   error
	state atomic.Int32
	done  chan struct{}
}

const (
	callWaiting int32 = iota
	callDone
	callAbandoned
)

// finish hands the result to the caller. Only the flusher calls it, once.
func (c *call[Q, R]) finish(res R, err error) {
	c.res, c.err = res, err
	c.state.CompareAndSwap(callWaiting, callDone)
	close(c.done)
}

// newCoalescer starts the flushers; ctx is that of their flushes, which a close that has no more time ends.
func newCoalescer[Q, R any](ctx context.Context, flushers, size int, linger time.Duration,
	flush func(context.Context, []*call[Q, R]), orphan func(*call[Q, R])) *coalescer[Q, R] {
	c := &coalescer[Q, R]{max: size, linger: linger, flush: flush, orphan: orphan,
		queue: make(chan *call[Q, R], size), landed: make(chan struct{}, 1), closing: make(chan struct{}), stopped: make(chan struct{})}
	for range flushers {
		c.wg.Go(func() { c.run(ctx) })
	}
	return c
}

// do submits req and waits for its result. When ctx ends first the request may or may not be carried out.
func (c *coalescer[Q, R]) do(ctx context.Context, req Q) (R, error) {
	var none R
	k := &call[Q, R]{req: req, done: make(chan struct{})}
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
		if k.state.CompareAndSwap(callWaiting, callAbandoned) {
			return none, ctx.Err()
		}
		<-k.done // finish has begun
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

// close refuses new calls, flushes what is queued and waits for the flushers.
func (c *coalescer[Q, R]) close() {
	close(c.closing)
	c.wg.Wait()
	close(c.stopped)
}

func (c *coalescer[Q, R]) run(ctx context.Context) {
	for {
		batch, more := c.gather()
		if len(batch) > 0 {
			c.flying.Add(1)
			c.flush(ctx, batch)
			c.flying.Add(-1)
			select {
			case c.landed <- struct{}{}:
			default:
			}
			if c.orphan != nil {
				for _, k := range batch {
					if k.state.Load() == callAbandoned {
						c.orphan(k)
					}
				}
			}
		}
		if !more {
			return
		}
	}
}

// gather returns the next batch; more is false when the coalescer is closing and the queue is empty.
func (c *coalescer[Q, R]) gather() (batch []*call[Q, R], more bool) {
	c.collect.Lock()
	defer c.collect.Unlock()
	take := func(k *call[Q, R]) {
		if k.state.Load() == callWaiting {
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
		if c.flying.Load() == 0 || c.linger == 0 {
			break
		}
		if timer == nil {
			timer = time.After(c.linger)
		}
		select {
		case k := <-c.queue:
			take(k)
			continue
		case <-c.landed:
			continue
		case <-timer:
		case <-c.closing:
		}
		break
	}
	return batch, true
}
