package httpclient

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter reads the header Retry-After of an answer (RFC 9110, section 10.2.3: seconds or an
// HTTP date), for pipeline.RetryAfter. A date is compared with the answer's own Date if there is one, because
// our clock may be wrong, otherwise with now. The wait is at least zero, and a number beyond the
// range of a Duration is the longest one, so the caller limits it. ok is false without a readable
// header.
func RetryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	const longest = time.Duration(math.MaxInt64)
	value := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(value, 10, 64); !errors.Is(err, strconv.ErrSyntax) {
		if seconds > uint64(longest/time.Second) { // also a number out of range
			return longest, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, at.Sub(now)), true
}
