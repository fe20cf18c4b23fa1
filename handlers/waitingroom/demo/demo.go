// Package demo sends a crowd through a waiting room while processes are killed. It checks what each
// user and the shop have received.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/checker"
	"github.com/millrace-io/millrace/handlers/waitingroom/gate"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
)

// Options are the size of the demo, and what it uses. All fields but Kills are required.
type Options struct {
	Event    string
	Users    int
	TokenTTL time.Duration // that of the room

	URL    string       // address of the brokers
	Client *http.Client // of the users; it must not limit the time of a request
	Gate   *gate.Gate   // of the shop
	// Status returns the state of the room.
	Status func(context.Context) (room.Status, error)
	// Close closes the room. It is called when all seats are sold.
	Close func(context.Context) error
	// Kills are called one after the other: when a quarter of the seats are sold, when half of
	// them are sold, and so on.
	Kills []func() error
	// Progress is called with the number of users whose visit has ended.
	Progress func(int64)
}

// Report is the result.
type Report struct {
	checker.Report
	Killed  int     `json:"killed"` // processes
	Seconds float64 `json:"seconds"`
}

const (
	arrival     = 2 * time.Second // of all users
	sampleEvery = 200 * time.Millisecond
	patience    = 2 * time.Minute // for the ends of all users
)

type run struct {
	Options
	checker *checker.Checker
	ended   atomic.Int64
	killed  int
	fail    context.CancelCauseFunc
}

// Run sends the crowd. The error is that of a part that the demo needs.
func Run(ctx context.Context, o Options) (Report, error) {
	r := &run{Options: o, checker: checker.New(o.TokenTTL)}
	begin := time.Now()
	ctx, r.fail = context.WithCancelCause(ctx)
	defer r.fail(nil)
	visits, leave := context.WithTimeout(ctx, patience)
	defer leave()
	var crowd sync.WaitGroup
	for i := range o.Users {
		crowd.Go(func() {
			r.visit(visits, i)
			r.Progress(r.ended.Add(1))
		})
	}
	empty := make(chan struct{})
	go func() {
		defer close(empty)
		crowd.Wait()
	}()
	last, err := r.watch(ctx, empty)
	leave()
	<-empty
	report := Report{Report: r.checker.Report(last), Killed: r.killed, Seconds: time.Since(begin).Seconds()}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return report, err
}

// watch samples the room until it is empty. It kills processes on the way, and closes the room when
// all seats are sold. It returns the last sample.
func (r *run) watch(ctx context.Context, empty <-chan struct{}) (last room.Status, err error) {
	closed, failures := false, 0
	for deadline := time.Now().Add(patience + r.TokenTTL); ; {
		s, err := r.Status(ctx)
		switch {
		case err == nil:
			last, failures = s, 0
			r.checker.Sample(s)
		case ctx.Err() != nil:
			return last, context.Cause(ctx)
		default:
			if failures++; failures > 25 {
				return last, err
			}
		}
		if r.killed < len(r.Kills) && last.Capacity > 0 && last.Sold*4 >= last.Capacity*int64(r.killed+1) {
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
		if !closed && last.Capacity >= 0 && (last.Sold >= last.Capacity || gone) {
			closed = true
			r.checker.Closed()
			if err := r.Close(ctx); err != nil {
				return last, err
			}
			continue
		}
		if gone && last.Waiting+last.Ready+last.Admitted == 0 || time.Now().After(deadline) {
			return last, nil // the checker reports what is left
		}
		if !pipeline.Sleep(ctx, sampleEvery) {
			return last, context.Cause(ctx)
		}
	}
}

// errOver ends the stream of a user.
var errOver = errors.New("the visit is over")
