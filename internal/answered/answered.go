// Package answered says whether a far side answered about other effects while one effect was refused. An
// outage, or a refused credential, then never ends an effect, and trouble of that effect alone does.
package answered

import (
	"sync"
	"time"
)

// Keys holds when a far side last answered about an effect, for two effects, so for each effect it can be
// said whether another one was answered since a moment. The zero value is ready. It is safe for concurrent
// use.
type Keys[K comparable] struct {
	mu   sync.Mutex
	last [2]struct { // different keys, newest first
		key K
		at  time.Time
	}
}

// Note stores an answer about key.
func (a *Keys[K]) Note(key K, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last[0].key != key {
		a.last[1] = a.last[0]
	}
	a.last[0].key, a.last[0].at = key, at
}

// OthersSince reports whether an effect other than key was answered after t.
func (a *Keys[K]) OthersSince(key K, t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.last {
		if l.key != key {
			return l.at.After(t)
		}
	}
	return false
}
