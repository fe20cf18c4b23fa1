package web

import (
	"maps"
	"sync"
	"time"
)

// Rates limits how often each key, such as a user or a client, may send a request to this process. A key may
// send all requests of a window at once, and each of them is allowed again after its share of the window. It is
// safe for concurrent use.
type Rates struct {
	Most   int           // requests of a key in a window; 0: no limit
	Window time.Duration // greater than 0, unless there is no limit

	mu   sync.Mutex
	full map[string]time.Time // when all requests of a key are allowed again
}

// Take counts a request. It returns 0, or after how long the request is allowed. A request that is refused does
// not count.
func (r *Rates) Take(key string, now time.Time) (wait time.Duration) {
	if r.Most == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.full[key]
	if full.Before(now) {
		full = now
	}
	full = full.Add(r.Window / time.Duration(r.Most))
	if wait = full.Sub(now) - r.Window; wait > 0 {
		return wait
	}
	if r.full == nil {
		r.full = map[string]time.Time{}
	}
	r.full[key] = full
	return 0
}

// Clean forgets the keys that may send all requests of a window. Who has keys of strangers calls it from time
// to time, because each key takes memory.
func (r *Rates) Clean(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.full, func(_ string, full time.Time) bool { return !full.After(now) })
}

// Len returns how many keys are remembered.
func (r *Rates) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.full)
}
