package oncehttp

import (
	"net/http"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/httpclient"
)

// minThrottle is the shortest wait after a Retry-After. With "0" callers would spin.
const minThrottle = 100 * time.Millisecond

// throttle delays all calls until the Retry-After that several effects received is over. It is safe
// for concurrent use.
type throttle struct {
	mu    sync.Mutex
	until time.Time
}

// extend delays all calls for d. It never shortens a delay.
func (t *throttle) extend(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until := time.Now().Add(d); until.After(t.until) {
		t.until = until
	}
}

func (t *throttle) remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(0, time.Until(t.until))
}

// within reports whether a delay is in force, or ended less than d ago.
func (t *throttle) within(d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.until) < d
}

// retryAfter reads the Retry-After header of h and returns a wait between minThrottle and longest. ok
// is false without a readable header.
func retryAfter(h http.Header, now time.Time, longest time.Duration) (wait time.Duration, ok bool) {
	if wait, ok = httpclient.RetryAfter(h, now); !ok {
		return 0, false
	}
	return clamp(wait, longest), true
}

func clamp(d, longest time.Duration) time.Duration {
	return min(max(d, minThrottle), longest)
}
