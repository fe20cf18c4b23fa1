package pipeline

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// crew runs handlers on goroutines that it keeps. The Router starts a goroutine a message, and a handler's
// frames (the chain, a database, an HTTP client) grow its small stack several times over before it is thrown
// away: a goroutine that has done it once has the room already. The message's own goroutine waits, so that
// what the Router sees is as before. The zero value is ready.
type crew struct {
	mu    sync.Mutex
	idle  []hand // the one that worked last comes last, and is taken first
	ended bool
}

// hand is a goroutine of the crew: it runs what it is given and answers, one call at a time, until calls is closed.
type hand struct {
	calls   chan func() error
	results chan result
}

// result is what became of a call. When gone is set the goroutine has ended with it.
type result struct {
	err  error
	gone bool
}

// mostIdle is how many goroutines without work are kept.
const mostIdle = 256

// do runs f and returns its error. A panic is an error too: what the chain does not recover from must not end the process.
func (c *crew) do(f func() error) error {
	h := c.take()
	h.calls <- f
	r := <-h.results
	if !r.gone {
		c.keep(h)
	}
	return r.err
}

func (c *crew) take() hand {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle); n > 0 {
		h := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return h
	}
	h := hand{calls: make(chan func() error), results: make(chan result)}
	go h.work()
	return h
}

func (c *crew) keep(h hand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.idle) == mostIdle {
		close(h.calls)
		return
	}
	c.idle = append(c.idle, h)
}

func (h hand) work() {
	for f := range h.calls {
		h.run(f)
	}
}

var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit)")

// run answers for f however it ends.
func (h hand) run(f func() error) {
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

// end lets the goroutines without work go; those with work go when it is done.
func (c *crew) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, h := range c.idle {
		close(h.calls)
	}
	c.idle = nil
}
