package redistest

import (
	"sync/atomic"
	"testing"
	"time"
)

// StoodStill returns a function that says how long this process has stood still since, in pauses of at least so long.
// Leases end in such a pause without a fault of what is tested.
func StoodStill(t testing.TB, pause time.Duration) func() time.Duration {
	t.Helper()
	var total, seen atomic.Int64 // seen: when the process was last seen to run
	begin := time.Now()
	look := func() {
		now := time.Since(begin)
		if gap := now - time.Duration(seen.Swap(int64(now))); gap >= pause {
			total.Add(int64(gap))
		}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(pause / 20)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				look()
			case <-quit:
				return
			}
		}
	}()
	t.Cleanup(func() { close(quit); <-done })
	return func() time.Duration {
		look() // the caller may run first after a pause
		return time.Duration(total.Load())
	}
}
