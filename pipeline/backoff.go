package pipeline

import (
	"math"
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
	d := b.Longest(max(n, 1))
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// Longest returns the wait after the n-th failure without jitter, n from 1. It is the longest wait
// after the first n failures; for zero it is the longest of all.
func (b Backoff) Longest(n int) time.Duration {
	first, longest := b.First, b.Max
	if first <= 0 {
		first = time.Second
	}
	if longest <= 0 {
		longest = 30 * time.Second
	}
	if n == 0 {
		return longest
	}
	d := min(first, longest)
	for i := 1; i < n && d < longest; i++ {
		if d > longest/2 {
			return longest // and 2*d may be more than a Duration holds
		}
		d *= 2
	}
	return d
}

// Sum returns how long the waits after the first n failures last together without jitter.
func (b Backoff) Sum(n int) (sum time.Duration) {
	longest := b.Longest(0)
	for i := 1; i <= n; i++ {
		d := b.Longest(i)
		if d == longest { // as all that follow
			return sum + d*time.Duration(min(int64(n-i+1), math.MaxInt64/4/int64(d)))
		}
		sum += d
	}
	return sum
}
