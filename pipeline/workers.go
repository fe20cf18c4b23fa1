package pipeline

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// workerPool runs handlers on goroutines that it reuses. The Router starts one goroutine per
// message, with a small stack that the frames of a handler grow several times. A reused goroutine
// has a large stack already. The goroutine of the message waits for the result. The zero value is
// ready.
type workerPool struct {
	mu    sync.Mutex
	idle  []worker // in order of use; the last one is taken first
	ended bool
}

// worker is a goroutine of the pool. It runs one call at a time, until calls is closed.
type worker struct {
	calls   chan func() error
	results chan result
}

// result is the outcome of a call. When gone is set, the goroutine has ended with it.
type result struct {
	err  error
	gone bool
}

// mostIdle is the maximum number of idle goroutines.
const mostIdle = 256

// do runs f and returns its error. A panic is returned as an error, so that the process continues.
func (c *workerPool) do(f func() error) error {
	h := c.take()
	h.calls <- f
	r := <-h.results
	if !r.gone {
		c.keep(h)
	}
	return r.err
}

func (c *workerPool) take() worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle); n > 0 {
		h := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return h
	}
	h := worker{calls: make(chan func() error), results: make(chan result)}
	go h.work()
	return h
}

func (c *workerPool) keep(h worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.idle) == mostIdle {
		close(h.calls)
		return
	}
	c.idle = append(c.idle, h)
}

func (h worker) work() {
	for f := range h.calls {
		h.run(f)
	}
}

var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit)")

// run sends a result however f ends.
func (h worker) run(f func() error) {
	r := result{errGoexit, true}
	defer func() { h.results <- r }()
	r = result{err: recovered(f)}
}

func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic outside of the handler: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// end ends idle goroutines now and the others after their call.
func (c *workerPool) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, h := range c.idle {
		close(h.calls)
	}
	c.idle = nil
}
