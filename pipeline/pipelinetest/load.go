package pipelinetest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Load makes calls without a pause while a test changes what they depend on, such as a credential. Build it
// with StartLoad.
type Load struct {
	t       testing.TB
	quit    chan struct{}
	stop    func()
	running sync.WaitGroup
	ended   []atomic.Int64 // calls, by goroutine
	failed  chan error     // the first error of each goroutine, which ends with it
}

// StartLoad lets each of the goroutines make one call after the other, until Stop or the end of the test. call
// gets the number of its goroutine, from 0 on. An error ends its goroutine, and More and Stop fail the test
// with it.
func StartLoad(t testing.TB, goroutines int, call func(goroutine int) error) *Load {
	t.Helper()
	l := &Load{t: t, quit: make(chan struct{}), ended: make([]atomic.Int64, goroutines), failed: make(chan error, goroutines)}
	l.stop = sync.OnceFunc(func() {
		close(l.quit)
		l.running.Wait()
	})
	t.Cleanup(l.stop)
	for i := range goroutines {
		l.running.Go(func() {
			for {
				select {
				case <-l.quit:
					return
				default:
				}
				if err := call(i); err != nil {
					l.failed <- err
					return
				}
				l.ended[i].Add(1)
			}
		})
	}
	return l
}

// More waits until each goroutine has made a call that began after More did. So no call is under way any more
// that began before.
func (l *Load) More() {
	l.t.Helper()
	for i := range l.ended {
		before := l.ended[i].Load()
		l.Until("further calls end", func() bool { return l.ended[i].Load() > before+1 })
	}
}

// Until waits until ok returns true, such as when a far side has seen the new credential.
func (l *Load) Until(what string, ok func() bool) {
	l.t.Helper()
	require.Eventually(l.t, func() bool { return len(l.failed) > 0 || ok() }, 2*time.Minute, time.Millisecond, what)
	l.check()
}

// Stop waits for the calls under way, and returns how many were made.
func (l *Load) Stop() (calls int64) {
	l.t.Helper()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		l.stop()
	}()
	l.Until("the calls under way end", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	<-stopped
	l.check()
	for i := range l.ended {
		calls += l.ended[i].Load()
	}
	return calls
}

func (l *Load) check() {
	l.t.Helper()
	select {
	case err := <-l.failed:
		require.NoError(l.t, err)
	default:
	}
}
