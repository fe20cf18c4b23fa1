// Package rate has the arithmetic of limits that many instances share. It reads no clock and keeps no state:
// its caller stores what it returns, in one place for all instances.
package rate

import (
	"math"
	"slices"
	"time"
)

const (
	// Chunk is the time whose tokens an instance gets at once, so that it asks about four times a second. A
	// limit below four a second is given out one by one.
	Chunk = 250 * time.Millisecond
	// Life is how long tokens may be used, from the moment from which they may be used. What is left is lost.
	Life = 2 * Chunk
	// Ahead is how long before that moment tokens are given out. Instances that ask one after the other
	// then take turns, and none has to ask again and again.
	Ahead = time.Second
)

// Limits of Take. Outside of them a time would not fit, or not be exact.
const (
	Least = 0.001
	Most  = 1e6
)

// Take is the generic cell rate algorithm for chunks of tokens. tat is the time at which all tokens that were
// given out are earned, as the previous Take returned it. It gives at most want of perSecond tokens a second,
// and less than a chunk needs no other reason to be refused than that others are Ahead.
//
// The tokens may be used in the time from now+wait to now+wait+Life, and next is the tat to store. With n = 0
// there are none, wait says when they would have been usable, and nothing is to be stored. When all
// tokens are used in their time, no window of t seconds has more than perSecond × (t + 0.75) + 1 of them.
func Take(tat, now time.Time, perSecond float64, want int) (n int, wait time.Duration, next time.Time) {
	interval := float64(time.Second) / perSecond
	burst := micros(max(float64(Chunk), interval)) // what an idle limit has saved up
	base := tat
	if base.Before(now) {
		base = now
	} else if base.After(now.Add(Ahead + burst)) {
		base = now.Add(Ahead) // it comes from a lower limit, or from a clock that was put back
	}
	n = min(want, perChunk(perSecond))
	next = base.Add(micros(float64(n) * interval))
	wait = max(0, next.Add(-burst).Sub(now))
	if n < 1 || wait > Ahead {
		return 0, wait, tat
	}
	return n, wait, next
}

// micros rounds up to the resolution of the databases, so that rounding never gives a token away.
func micros(nanoseconds float64) time.Duration {
	return time.Duration(math.Ceil(nanoseconds/1000)) * time.Microsecond
}

// perChunk is the number of tokens that an instance gets at most at once.
func perChunk(perSecond float64) int { return max(1, int(perSecond*Chunk.Seconds())) }

// Share divides slots among those who want some of them, and returns what the one at the index gets. Who wants
// less than an equal share gets it all, and the others share what is left, so no slot is idle while it is wanted.
func Share(slots int, wanted []int, index int) int {
	order := make([]int, len(wanted))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return wanted[a] - wanted[b] })
	for i, who := range order {
		got := min(wanted[who], slots/(len(order)-i))
		if who == index {
			return got
		}
		slots -= got
	}
	return 0
}
