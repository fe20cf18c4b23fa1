package oncehttp

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// verdict is the meaning of an answer for the far side's health.
type verdict uint8

const (
	healthy       verdict = iota // the far side works
	failing                      // it does not work
	neutral                      // no meaning, such as a call that its caller cancelled
	misconfigured                // our settings are wrong; counts like failing
	throttling                   // it works, and requires fewer calls
)

// manyKeys is the number of idempotency keys that must have the same problem before all calls wait.
// One effect never stops the others, however often it is tried.
const manyKeys = 3

// throttledShare is the share of at least MinCalls answers that must be throttled before all calls
// wait. Below it each throttled effect waits by itself.
const throttledShare = 0.25

type state uint8

const (
	stateClosed state = iota
	stateHalfOpen
	stateOpen
)

func (s state) String() string { return [...]string{"closed", "half-open", "open"}[s] }

// breaker is a circuit breaker over a sliding window. MinCalls counts calls, but the share of
// failures counts keys, each at most once within the window. A key that fails again in a later
// window counts again only if no call of that window was answered well. Otherwise only that key
// fails. The breaker also decides when all calls are throttled.
//
// A result counts only in the state in which its call started. Otherwise calls from before the
// breaker opened would decide the outcome of the probes.
type breaker struct {
	cfg   BreakerConfig
	log   *slog.Logger
	start time.Time

	mu            sync.Mutex
	state         state
	gen           uint64 // counts changes of state
	window        window
	bad           map[string]badKey   // keys with failures; at most maxBad
	misconfigured map[string]struct{} // up to manyKeys keys since the last healthy answer
	probes        int                 // permits left while half-open
	successes     int                 // of probes
	opener        string              // key that opened the breaker last
	openUntil     time.Time
	notClosed     time.Time // since when it is open or half-open
}

type badKey struct {
	slot   int64 // number of the slot in which it was counted last
	healed bool  // it had a healthy answer since
}

const maxBad = 1 << 14

func newBreaker(cfg BreakerConfig, log *slog.Logger) *breaker {
	return &breaker{cfg: cfg, log: log, start: time.Now(), window: window{width: cfg.Window / windowSlots},
		bad: map[string]badKey{}, misconfigured: map[string]struct{}{}}
}

// permit is the right to make one call. Exactly one verdict must be recorded for each.
type permit struct {
	gen   uint64
	probe bool
}

// acquire returns a permit, or the time until the next probe.
func (b *breaker) acquire() (p permit, wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == stateOpen {
		if wait := b.remaining(); wait > 0 {
			return permit{}, wait, false
		}
		b.probes, b.successes = b.cfg.HalfOpenSuccesses, 0
		b.enter(stateHalfOpen)
		b.log.Info("breaker half-open", "probes", b.probes)
	}
	if b.state == stateClosed {
		return permit{gen: b.gen}, 0, true
	}
	if b.probes == 0 {
		return permit{}, 0, false
	}
	b.probes--
	return permit{gen: b.gen, probe: true}, 0, true
}

// record ends the permit of a call for key. It reports whether all calls must be throttled.
func (b *breaker) record(p permit, key string, v verdict) (throttled bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.gen != b.gen {
		return false
	}
	if p.probe {
		b.recordProbe(key, v)
		return false
	}
	now := b.window.at(time.Since(b.start))
	if v != neutral {
		now.calls++
	}
	switch v {
	case healthy:
		now.ok++
		if k, known := b.bad[key]; known {
			k.healed = true
			b.bad[key] = k
		}
	case failing, misconfigured:
		if b.counts(key) {
			now.failed++
		}
		if sum := b.window.sum(); b.general(sum, sum.failed, b.cfg.FailureRatio) {
			b.open(key, sum.failed, sum.calls)
		}
	case throttling:
		if b.counts(key) {
			now.throttled++
		}
		if sum := b.window.sum(); b.general(sum, sum.throttled, throttledShare) {
			b.restart()
			return true
		}
	}
	return false
}

// general reports whether enough keys have the same problem that all calls must wait.
func (b *breaker) general(sum slot, keys int, share float64) bool {
	return keys >= manyKeys && sum.calls >= b.cfg.MinCalls && float64(keys) >= share*float64(sum.ok+sum.failed+sum.throttled)
}

// counts stores a failure of key, and reports whether it counts against the far side.
func (b *breaker) counts(key string) bool {
	k, known := b.bad[key]
	if known && (b.window.holds(k.slot) || !k.healed && b.window.sum().ok > 0) {
		return false
	}
	if len(b.bad) >= maxBad {
		clear(b.bad)
	}
	b.bad[key] = badKey{slot: b.window.now}
	return true
}

// recordProbe ends a probe. The key that opened the breaker can't open it again with its probe.
func (b *breaker) recordProbe(key string, v verdict) {
	switch {
	case v == healthy, v == throttling:
		if b.successes++; b.successes >= b.cfg.HalfOpenSuccesses {
			b.opener = ""
			b.restart()
			b.enter(stateClosed)
			b.log.Info("breaker closed")
			return
		}
	case v != neutral && key != b.opener:
		b.open(key, 1, 1)
		return
	}
	b.probes++
}

func (b *breaker) open(key string, failed, total int) {
	wait := time.Duration(float64(b.cfg.OpenDelay) * (0.9 + 0.2*rand.Float64())) // jitter
	b.log.Warn("breaker opened", "from", b.state.String(), "failed_keys", failed, "calls", total, "probe_after", wait)
	b.opener = key
	b.openUntil = time.Now().Add(wait)
	if b.state == stateClosed {
		b.notClosed = time.Now()
	}
	b.restart()
	b.enter(stateOpen)
}

func (b *breaker) enter(s state) {
	b.gen++
	b.state = s
}

func (b *breaker) restart() {
	clear(b.bad)
	b.window.slots = [windowSlots]slot{}
}

// manyMisconfigured stores the verdict of key, and reports whether manyKeys keys were misconfigured
// since the last healthy answer.
func (b *breaker) manyMisconfigured(key string, v verdict) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case v == misconfigured && len(b.misconfigured) < manyKeys:
		b.misconfigured[key] = struct{}{}
	case v == healthy:
		clear(b.misconfigured)
	}
	return len(b.misconfigured) >= manyKeys
}

func (b *breaker) ready() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case stateOpen:
		return b.remaining() == 0
	case stateHalfOpen:
		return b.probes > 0
	}
	return true
}

// probe lets the next probe of an open breaker begin at once.
func (b *breaker) probe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.openUntil = time.Now()
}

// remaining returns the time until the next probe of an open breaker. The caller holds mu.
func (b *breaker) remaining() time.Duration { return max(0, time.Until(b.openUntil)) }

// reading returns the state, since when it is not closed, and the time until the next probe of an open breaker.
func (b *breaker) reading() (s state, since time.Time, next time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.notClosed, b.remaining()
}

func (b *breaker) current() state {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

const windowSlots = 10

// window counts answers by slots of time.
type window struct {
	width time.Duration
	slots [windowSlots]slot
	now   int64 // number of the newest slot
}

// slot counts answers. A failed key is in failed or throttled of at most one slot of a window.
type slot struct{ calls, ok, failed, throttled int }

// at returns the slot of a moment, and empties the slots that are older than the window.
func (w *window) at(since time.Duration) *slot {
	n := int64(since / w.width)
	for i := max(w.now+1, n-windowSlots+1); i <= n; i++ {
		w.slots[i%windowSlots] = slot{}
	}
	w.now = max(w.now, n)
	return &w.slots[w.now%windowSlots]
}

func (w *window) holds(n int64) bool { return n > w.now-windowSlots }

func (w *window) sum() (sum slot) {
	for _, s := range w.slots {
		sum.calls += s.calls
		sum.ok += s.ok
		sum.failed += s.failed
		sum.throttled += s.throttled
	}
	return sum
}
