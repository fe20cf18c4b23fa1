package effects

import "time"

// Take counts n requests of a client that may send most a minute, and returns how long it has to wait.
func Take(most int, at ...time.Time) (waits []time.Duration) {
	l := limit{most: most}
	for _, now := range at {
		waits = append(waits, l.take(now))
	}
	return waits
}
