package pipeline

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// workerPool runs handlers on goroutines that it reuses. The Router starts one goroutine per
// message, with a small stack that the frames of a handler grow several times. A reused goroutine
// has a large stack already.
type workerPool struct {
	log *slog.Logger

	mu    sync.Mutex
	idle  []worker // in order of use; the last one is taken first
	ended bool
}

type worker struct {
	pool    *workerPool
	calls   chan call
	results chan result // of calls that are waited for
}

type call struct {
	f    func() error
	then func(worker) // called instead of waiting for the result; nil: the caller waits
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
	h.calls <- call{f: f}
	r := <-h.results
	if !r.gone {
		c.keep(h)
	}
	return r.err
}

// start runs f and does not wait for it. A panic of f does not end the process.
func (c *workerPool) start(f func()) {
	c.take().calls <- call{func() error { f(); return nil }, c.keep}
}

func (c *workerPool) take() worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle); n > 0 {
		h := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return h
	}
	h := worker{pool: c, calls: make(chan call), results: make(chan result)}
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
	for one := range h.calls {
		h.run(one)
	}
}

// run reports a result however the call ends.
func (h worker) run(one call) {
	r := result{ErrGoexit, true}
	defer func() {
		switch {
		case one.then == nil:
			h.results <- r
		case !r.gone:
			one.then(h)
		}
	}()
	r = result{err: h.pool.recovered(one.f)}
}

func (c *workerPool) recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.panicked(p)
		}
	}()
	return f()
}

// panicked logs a panic of the chain, or of an Activity, and returns it as an error.
func (c *workerPool) panicked(p any) error {
	err := fmt.Errorf("panic outside of the handler: %v", p)
	c.log.Error("panic outside of the handler", logs.Err(err), slog.String("stack", string(debug.Stack())))
	return err
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
