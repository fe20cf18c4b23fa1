package money

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// minThrottle is the shortest wait after a Retry-After. With "0" callers would spin.
const minThrottle = 100 * time.Millisecond

// throttle delays all calls until the Retry-After that several payouts received is over. It is safe
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

// retryAfter reads the Retry-After header of h (RFC 9110, 10.2.3: seconds or an HTTP date) and
// returns a wait between minThrottle and longest. ok is false without a readable header. A date
// is compared with the answer's own Date if there is one, because our clock may be wrong.
func retryAfter(h http.Header, now time.Time, longest time.Duration) (wait time.Duration, ok bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(value, 10, 64); !errors.Is(err, strconv.ErrSyntax) {
		if seconds > uint64(longest/time.Second) { // also a number out of range
			return longest, true
		}
		return clamp(time.Duration(seconds)*time.Second, longest), true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return clamp(at.Sub(now), longest), true
}

func clamp(d, longest time.Duration) time.Duration {
	return min(max(d, minThrottle), longest)
}
