package oncehttp

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// openAtMost is the longest delay of an open breaker, with jitter.
const openAtMost = 5*time.Second*11/10 + time.Millisecond

func testBreaker() *breaker {
	return newBreaker(DefaultConfig().Breaker, slog.New(slog.DiscardHandler))
}

// take acquires n permits.
func take(t *testing.T, b *breaker, n int) []permit {
	t.Helper()
	var ps []permit
	for range n {
		p, _, ok := b.acquire()
		require.True(t, ok)
		ps = append(ps, p)
	}
	return ps
}

var testKeys atomic.Int64

// record ends permits of calls for as many different keys.
func record(b *breaker, v verdict, ps ...permit) {
	for _, p := range ps {
		b.record(p, fmt.Sprint("key ", testKeys.Add(1)), v)
	}
}

// opened is a breaker that several keys have opened.
func opened(t *testing.T) *breaker {
	b := testBreaker()
	record(b, failing, take(t, b, 20)...)
	require.Equal(t, "open", b.current().String())
	return b
}

// The breaker stays closed for any answers to one effect, and only that effect's calls wait.
func TestOneKeyNeverStopsTheOthers(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]verdict{"failing": failing, "misconfigured": misconfigured, "throttling": throttling} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := testBreaker()
			for n := range 1000 {
				require.False(t, b.record(take(t, b, 1)[0], fmt.Sprint("poisoned ", n%2), v), "general")
				require.Equal(t, "closed", b.current().String())
			}
			require.False(t, b.manyMisconfigured("poisoned 0", v))
			require.False(t, b.manyMisconfigured("poisoned 1", v))
			require.Equal(t, v == misconfigured, b.manyMisconfigured("another", v))
		})
	}
}

// outage is a load on a breaker: each key is tried up to 12 times, after waits from 1 s to 30 s.
type outage struct {
	keys    int
	every   time.Duration // between the first calls of two keys
	healthy int           // good calls of other keys, a second
	until   int           // second at which those end; 0: never
	heals   bool          // each second try of a key is answered well
	within  time.Duration // the breaker must open so soon; 0: never
}

// opens returns the time until the breaker opened, or 0 if it stayed closed for 10 minutes.
func (o outage) opens(b *breaker) time.Duration {
	began := time.Now()
	tried, due := make([]int, o.keys), make([]time.Duration, o.keys)
	for second := range 600 {
		for key := range o.keys {
			if due[key] == 0 {
				due[key] = time.Duration(key) * o.every
			}
			if tried[key] == 12 || due[key] > time.Since(began) {
				continue
			}
			due[key] = time.Since(began) + min(time.Second<<tried[key], 30*time.Second)
			tried[key]++
			v := failing
			if o.heals && tried[key]%2 == 0 {
				v = healthy
			}
			p, _, _ := b.acquire()
			b.record(p, fmt.Sprint("retried ", key), v)
			if b.current().String() != "closed" {
				return max(1, time.Since(began))
			}
		}
		if o.until == 0 || second < o.until {
			for range o.healthy {
				p, _, _ := b.acquire()
				record(b, healthy, p)
			}
		}
		time.Sleep(time.Second)
	}
	return 0
}

// Retries are calls too, and a key that fails counts again in a later window.
func TestAnOutageWithFewNewKeys(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]outage{
		"a new key a second":                  {keys: 600, every: time.Second, within: 20 * time.Second},
		"only keys that failed before":        {keys: 100, every: 300 * time.Millisecond, healthy: 20, until: 40, within: time.Minute},
		"two keys":                            {keys: 2},
		"two keys that have good answers too": {keys: 2, heals: true},
		"three poisoned keys among healthy":   {keys: 3, healthy: 1},
		"1 % poisoned":                        {keys: 300, every: time.Second, healthy: 99},
		"many poisoned keys, few healthy":     {keys: 100, every: 4 * time.Second, healthy: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				opened := o.opens(testBreaker())
				require.Equal(t, o.within > 0, opened > 0, "opened after %s", opened)
				require.LessOrEqual(t, opened, o.within)
			})
		})
	}
}

// TestAKeyCountsOnceInAWindow: good answers in between change nothing of that.
func TestAKeyCountsOnceInAWindow(t *testing.T) {
	t.Parallel()
	b := testBreaker()
	for n := range 100 {
		b.record(take(t, b, 1)[0], "poisoned", [...]verdict{failing, healthy}[n%2])
	}
	require.Equal(t, slot{calls: 100, ok: 50, failed: 1}, b.window.sum())
}

func TestThrottlingOfSeveralKeysIsGeneral(t *testing.T) {
	t.Parallel()
	b := testBreaker()
	for n := range 19 {
		require.False(t, b.record(take(t, b, 1)[0], fmt.Sprint("first ", n), throttling), "fewer than min_calls")
	}
	require.True(t, b.record(take(t, b, 1)[0], "first 19", throttling))
	record(b, healthy, take(t, b, 20)...)
	for n := range 6 {
		require.False(t, b.record(take(t, b, 1)[0], fmt.Sprint("throttled ", n), throttling), "6 of 26 is no quarter")
	}
	require.True(t, b.record(take(t, b, 1)[0], "throttled 6", throttling))
	require.False(t, b.record(take(t, b, 1)[0], "throttled 6", throttling), "the count begins again")
}

// TestAPoisonedProbe: the key that opened the breaker can't open it again as the next probe.
func TestAPoisonedProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := opened(t)
		time.Sleep(openAtMost)
		b.record(take(t, b, 1)[0], "poisoned", failing)
		require.Equal(t, "open", b.current().String())
		time.Sleep(openAtMost)
		for range 5 {
			b.record(take(t, b, 1)[0], "poisoned", failing)
			require.Equal(t, "half-open", b.current().String())
		}
		record(b, healthy, take(t, b, 3)...)
		require.Equal(t, "closed", b.current().String())
	})
}

// TestTheWindowMovesOn: what is older than the window counts no more.
func TestTheWindowMovesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := testBreaker()
		record(b, failing, take(t, b, 19)...)
		time.Sleep(9 * time.Second)
		require.Equal(t, 19, b.window.sum().calls)
		time.Sleep(2 * time.Second)
		record(b, failing, take(t, b, 1)...)
		require.Equal(t, "closed", b.current().String())
		require.Equal(t, 1, b.window.sum().calls)
		time.Sleep(time.Hour)
		record(b, healthy, take(t, b, 1)...)
		require.Equal(t, 1, b.window.sum().calls)
	})
}

func TestBreakerOpensAndRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := testBreaker()
		record(b, healthy, take(t, b, 10)...)
		record(b, failing, take(t, b, 9)...)
		require.True(t, b.ready(), "fewer than min_calls")
		record(b, failing, take(t, b, 1)...)
		require.Equal(t, "open", b.current().String())
		require.False(t, b.ready())
		_, wait, ok := b.acquire()
		require.False(t, ok)
		require.InDelta(t, 5*time.Second, wait, float64(500*time.Millisecond))
		require.Equal(t, wait, b.remaining())

		time.Sleep(openAtMost)
		require.True(t, b.ready(), "it must become ready by itself")
		probes := take(t, b, 3)
		require.Equal(t, "half-open", b.current().String())
		require.False(t, b.ready(), "no probe is left")
		_, _, ok = b.acquire()
		require.False(t, ok)
		record(b, healthy, probes[0])
		require.True(t, b.ready())
		record(b, healthy, probes[1:]...)
		require.Equal(t, "closed", b.current().String())
		require.True(t, b.ready())
	})
}

func TestBreakerFailedProbeOpensAgain(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]verdict{"failing": failing, "misconfigured": misconfigured} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := opened(t)
				time.Sleep(openAtMost)
				record(b, neutral, take(t, b, 2)...)
				require.True(t, b.ready(), "a call that says nothing gives its permit back")
				record(b, v, take(t, b, 1)...)
				require.Equal(t, "open", b.current().String())
				require.False(t, b.ready())
				time.Sleep(openAtMost)
				require.True(t, b.ready())
			})
		})
	}
}

// Calls from before the breaker opened end while it is half-open. They must not close it, open it,
// or add probes.
func TestBreakerIgnoresLateResults(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]verdict{"healthy": healthy, "failing": failing, "neutral": neutral} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := testBreaker()
				late := take(t, b, 50)
				record(b, misconfigured, take(t, b, 20)...)
				time.Sleep(openAtMost)
				probes := take(t, b, 2)
				record(b, v, late...)
				require.Equal(t, "half-open", b.current().String())
				take(t, b, 1)
				_, _, ok := b.acquire()
				require.False(t, ok)
				record(b, healthy, probes...)
				require.Equal(t, "half-open", b.current().String())
			})
		})
	}
}

func TestBreakerNeutralIsNotCounted(t *testing.T) {
	t.Parallel()
	b := testBreaker()
	record(b, neutral, take(t, b, 1000)...)
	require.Equal(t, "closed", b.current().String())
	record(b, failing, take(t, b, 19)...)
	require.Equal(t, "closed", b.current().String())
	record(b, failing, take(t, b, 1)...)
	require.Equal(t, "open", b.current().String())
}

// A breaker whose calls have all ended lets a call through again in time. While ready is true,
// acquire returns a permit.
func TestBreakerNeverStaysShut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		// rapid prefers small numbers; the walk needs all of them alike.
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		steps := make([]int, rapid.IntRange(1, 200).Draw(rt, "steps"))
		for i := range steps {
			steps[i] = r.IntN(100)
		}
		// Inside the bubble nothing may fail the check: rapid belongs to another goroutine.
		problem := ""
		synctest.Test(t, func(*testing.T) { problem = walk(steps) })
		require.Empty(rt, problem)
	})
}

// walk takes a breaker through the steps, lets all calls end, and says what is wrong then.
func walk(steps []int) (problem string) {
	b := testBreaker()
	var held []permit
	for _, s := range steps {
		switch {
		case s < 40:
			ready := b.ready()
			p, _, ok := b.acquire()
			if ready != ok {
				return fmt.Sprintf("%s: ready %t, but acquired %t", b.current().String(), ready, ok)
			}
			if ok {
				held = append(held, p)
			}
		case s < 90 && len(held) > 0:
			i := s % len(held)
			b.record(held[i], fmt.Sprint("key ", s), verdict(s%5))
			held = append(held[:i], held[i+1:]...)
		case s >= 90:
			time.Sleep(time.Duration(s-89) * time.Second)
		}
	}
	for i, p := range held {
		b.record(p, fmt.Sprint("key ", i), verdict(i%5))
	}
	time.Sleep(openAtMost)
	if !b.ready() {
		return b.current().String() + ": not ready, though all calls have ended"
	}
	for range 3 {
		p, _, ok := b.acquire()
		if !ok {
			return b.current().String() + ": no permit, though all calls have ended"
		}
		b.record(p, "good", healthy)
	}
	if b.current().String() != "closed" {
		return b.current().String() + " after three good calls"
	}
	return ""
}

func TestThrottle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := throttle{}
		require.Zero(t, th.remaining())
		th.extend(10 * time.Second)
		th.extend(2 * time.Second)
		require.Equal(t, 10*time.Second, th.remaining(), "a shorter wait opens nothing")
		time.Sleep(9 * time.Second)
		require.Equal(t, time.Second, th.remaining())
		th.extend(3 * time.Second)
		time.Sleep(2 * time.Second)
		require.Equal(t, time.Second, th.remaining())
		time.Sleep(time.Second)
		require.Zero(t, th.remaining())
	})
}
