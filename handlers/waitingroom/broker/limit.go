package broker

import (
	"maps"
	"sync"
	"time"
)

// limitWindow is the time in which a user may send Config.RequestsPerUser requests.
const limitWindow = 10 * time.Second

// limits counts the requests of users of this process. A user may send all requests of a window at
// once. Each of them is allowed again after its share of the window.
//
// The requests for all events count together, because the id of an event may be invented: each new
// one would otherwise have all requests again, costs a call to the Event Service, and leaves a key in
// Redis and an entry here.
type limits struct {
	most int // requests in a window; 0: no limit

	mu    sync.Mutex
	users map[string]time.Time // when all requests of a user are allowed again
}

// take counts a request. It returns 0, or after how long the request is allowed. A request that is
// refused does not count.
func (l *limits) take(user string, now time.Time) (wait time.Duration) {
	if l.most == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	full := l.users[user]
	if full.Before(now) {
		full = now
	}
	full = full.Add(limitWindow / time.Duration(l.most))
	if wait = full.Sub(now) - limitWindow; wait > 0 {
		return wait
	}
	if l.users == nil {
		l.users = map[string]time.Time{}
	}
	l.users[user] = full
	return 0
}

// clean removes the users that may send all requests of a window.
func (l *limits) clean(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.users, func(_ string, full time.Time) bool { return !full.After(now) })
}
