// Package demo sends a crowd through a waiting room while processes are killed. It checks what each
// user and the shop have received.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/checker"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// Options are the size of the demo, and what it uses. The first fields up to Progress are required.
type Options struct {
	Event   string
	Users   int
	Checker *checker.Checker

	URL    string               // address of the brokers
	Client *http.Client         // of the users; it must not limit the time of a request
	Gate   *shopmiddleware.Gate // of the shop
	// Status returns the state of the room.
	Status func(context.Context) (room.Status, error)
	// Close closes the room. It is called when all seats are sold.
	Close func(context.Context) error
	// Progress is called with the number of users whose visit has ended.
	Progress func(int64)
	// Kills are called one after the other, after each quarter of the sale. A quarter of the seats
	// is sold then, or a quarter of the visits has ended.
	Kills []func() error
	// Habit returns the habit of a user. Nil: the usual one.
	Habit func(i int) checker.Habit
	// More returns true while a user arrives for each one whose visit has ended. The room is not
	// closed meanwhile. Nil: there are no more.
	More func() bool
	// Patience is how long users wait. Zero: 2m.
	Patience time.Duration
}

// Report is the result.
type Report struct {
	checker.Report
	Drawn   Drawn   `json:"drawn"`
	Killed  int     `json:"killed"` // processes
	Seconds float64 `json:"seconds"`
}

const (
	arrival     = 2 * time.Second // of all users
	arriveEvery = 100 * time.Millisecond
	sampleEvery = 200 * time.Millisecond
	leaseOver   = 30 * time.Second // at most, after the last visit
)

type run struct {
	Options
	ended  atomic.Int64
	killed int
	fail   context.CancelCauseFunc
}

// Run sends the crowd. The error is that of a part that the demo needs.
func Run(ctx context.Context, o Options) (Report, error) {
	r := &run{Options: o}
	r.Patience = cmp.Or(r.Patience, 2*time.Minute)
	if r.Habit == nil {
		r.Habit = habitOf
	}
	if r.More == nil {
		r.More = func() bool { return false }
	}
	begin := time.Now()
	ctx, r.fail = context.WithCancelCause(ctx)
	defer r.fail(nil)
	visits, leave := context.WithTimeout(ctx, r.Patience)
	defer leave()
	var crowd sync.WaitGroup
	visit := func(i int) {
		r.visit(visits, i)
		r.Progress(r.ended.Add(1))
	}
	for i := range o.Users {
		crowd.Go(func() {
			if loop.Sleep(visits, time.Duration(rand.Int64N(int64(arrival)))) { //nolint:gosec // no secret
				visit(i)
			}
		})
	}
	crowd.Go(func() {
		for next := o.Users; loop.Sleep(visits, arriveEvery) && r.More(); {
			if i := next; int64(i)-r.ended.Load() < int64(o.Users) {
				crowd.Go(func() { visit(i) })
				next++
			}
		}
	})
	empty := make(chan struct{})
	go func() {
		defer close(empty)
		crowd.Wait()
	}()
	last, err := r.watch(ctx, empty)
	leave()
	<-empty
	report := Report{Report: r.Checker.Report(last), Killed: r.killed, Seconds: time.Since(begin).Seconds()}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return report, err
}

// watch samples the room until it is empty. It kills processes on the way, and closes the room when
// all seats are sold. It returns the last sample.
func (r *run) watch(ctx context.Context, empty <-chan struct{}) (last room.Status, err error) {
	closed, failures := false, 0
	for deadline := time.Now().Add(r.Patience + leaseOver); ; {
		s, err := r.Status(ctx)
		switch {
		case err == nil:
			last, failures = s, 0
			r.Checker.Sample(s)
		case ctx.Err() != nil:
			return last, context.Cause(ctx)
		default:
			if failures++; failures > 25 {
				return last, err
			}
		}
		if r.killed < len(r.Kills) && r.quarters(last) > int64(r.killed) {
			r.killed++
			if err := r.Kills[r.killed-1](); err != nil {
				return last, fmt.Errorf("kill a process: %w", err)
			}
		}
		gone := false
		select {
		case <-empty:
			gone = true
		default:
		}
		if !closed && !r.More() && last.Capacity >= 0 && (last.Sold >= last.Capacity || gone) {
			closed = true
			r.Checker.Closed()
			if err := r.Close(ctx); err != nil {
				return last, err
			}
			continue
		}
		if gone && last.Waiting+last.Ready+last.Admitted == 0 || time.Now().After(deadline) {
			return last, nil // the checker reports what is left
		}
		if !loop.Sleep(ctx, sampleEvery) {
			return last, context.Cause(ctx)
		}
	}
}

// quarters returns how much of the sale is over: of the seats, or of the visits if these are fewer.
func (r *run) quarters(s room.Status) int64 {
	if s.Capacity <= 0 {
		return 0
	}
	return max(4*s.Sold/s.Capacity, 4*r.ended.Load()/int64(r.Users))
}

// errOver ends the stream of a user.
var errOver = errors.New("the visit is over")
