package money

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// minThrottle is the shortest wait a Retry-After leads to: with "0" callers would spin.
const minThrottle = 100 * time.Millisecond

// gate is closed for all calls while a Retry-After that several payouts were given holds. Safe for concurrent use.
type gate struct {
	start time.Time    // of the client; monotonic
	until atomic.Int64 // nanoseconds after start
}

// closeFor closes the gate until now + d, or leaves it closed for longer.
func (g *gate) closeFor(d time.Duration) {
	until := int64(time.Since(g.start) + d)
	for {
		old := g.until.Load()
		if old >= until || g.until.CompareAndSwap(old, until) {
			return
		}
	}
}

// remaining returns how long the gate stays closed; 0 when it is open.
func (g *gate) remaining() time.Duration {
	until := g.until.Load()
	if until == 0 {
		return 0
	}
	return max(0, time.Duration(until)-time.Since(g.start))
}

// held reports whether the gate is closed, or was so less than d ago.
func (g *gate) held(d time.Duration) bool {
	until := g.until.Load()
	return until != 0 && time.Since(g.start) < time.Duration(until)+d
}

// retryAfter reads the Retry-After header of h (RFC 9110, 10.2.3: seconds or an HTTP date) and
// returns a wait between minThrottle and longest. ok is false without a readable header. A date
// is compared with the answer's own Date when it has one, so that a skewed clock does no harm.
func retryAfter(h http.Header, now time.Time, longest time.Duration) (wait time.Duration, ok bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	if isDigits(value) {
		// Anything that overflows is far past any cap.
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(longest/time.Second) {
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

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
