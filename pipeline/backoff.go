package pipeline

import (
	"math/rand/v2"
	"time"
)

// Backoff is a delay that doubles with every failure. The zero value means First 1s, Max 30s.
type Backoff struct {
	First time.Duration `yaml:"first"` // the delay after the first failure
	Max   time.Duration `yaml:"max"`   // the longest delay, jitter included
}

// Delay returns the wait after the n-th failure, n from 1. Up to 20 % of jitter is taken off, so
// that simultaneous failures are not retried simultaneously.
func (b Backoff) Delay(n int) time.Duration {
	first, longest := b.First, b.Max
	if first <= 0 {
		first = time.Second
	}
	if longest <= 0 {
		longest = 30 * time.Second
	}
	d := min(first, longest)
	for i := 1; i < n && d < longest; i++ {
		d = min(2*d, longest)
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
