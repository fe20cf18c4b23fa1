package portable

import (
	"context"
	"sync/atomic"
	"time"
)

// Turn is the right to use the one connection that writes to a file of SQLite. Build it with NewTurn. It is
// safe for concurrent use.
type Turn struct {
	free          chan struct{} // one, while nobody has the turn
	waits, waited atomic.Int64  // times, ns
}

// NewTurn returns a turn that is free.
func NewTurn() *Turn {
	t := &Turn{free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// Take waits for the turn. With an error of ctx the caller does not have it.
func (t *Turn) Take(ctx context.Context) error {
	select {
	case <-t.free:
		return nil
	default:
	}
	began := time.Now()
	defer func() {
		t.waits.Add(1)
		t.waited.Add(int64(time.Since(began)))
	}()
	select {
	case <-t.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Give gives the turn back. Who gives it has taken it.
func (t *Turn) Give() { t.free <- struct{}{} }

// Pool returns the connection as a pool of one.
func (t *Turn) Pool(name string) Pool {
	idle := len(t.free)
	return Pool{Name: name, InUse: 1 - idle, Idle: idle, Limit: 1, Waits: t.waits.Load(), Waited: time.Duration(t.waited.Load())}
}
