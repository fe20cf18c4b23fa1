package money

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// verdict is what an answer says about the API's health.
type verdict uint8

const (
	healthy       verdict = iota // the API works
	failing                      // the API does not work
	neutral                      // the call says nothing, such as one that its caller cancelled
	misconfigured                // we are not set up right; counts like failing
	throttling                   // the API works, and asks for fewer calls
)

// manyKeys is how many different idempotency keys must have the same trouble before all calls wait. One payout,
// however often it is tried, never stops the others.
const manyKeys = 3

// throttledShare is how many of at least MinCalls answers must be throttled before the gate closes. Below it each
// throttled payout waits by itself.
const throttledShare = 0.25

const (
	stateClosed int32 = iota
	stateHalfOpen
	stateOpen
)

// breaker is a circuit breaker over a sliding window. MinCalls is about calls, but the share of those that fail is about
// keys: a key counts at most once within the window. A key that fails again in a later window counts again only when no
// call within that window was answered well; otherwise the trouble is the key's own. The breaker also decides when
// throttling is general. Results are only counted in the state in which their call began; otherwise calls begun before
// the breaker opened would decide the outcome of the probes.
type breaker struct {
	cfg   BreakerConfig
	log   *slog.Logger
	start time.Time

	mu        sync.Mutex
	gen       uint64 // counts changes of state
	window    window
	bad       map[string]badKey   // keys that were answered badly; bounded by maxBad
	ownFaults map[string]struct{} // up to manyKeys keys that were answered misconfigured, none healthy since
	probes    int                 // permits left while half-open
	successes int                 // of probes
	opener    string              // key that opened the breaker last

	state     atomic.Int32
	openUntil atomic.Int64 // nanoseconds after start
	probe     atomic.Bool  // a permit is left while half-open
}

// badKey is what the breaker knows of a key that was answered badly.
type badKey struct {
	slot   int64 // number of the slot in which it was counted last
	healed bool  // it had a healthy answer since
}

// maxBad bounds the memory of bad keys. When it is full it is emptied; each key then counts once more.
const maxBad = 1 << 14

func newBreaker(cfg BreakerConfig, log *slog.Logger) *breaker {
	return &breaker{cfg: cfg, log: log, start: time.Now(), window: window{width: cfg.Window / windowSlots},
		bad: map[string]badKey{}, ownFaults: map[string]struct{}{}}
}

// permit is the right to make one call. Exactly one verdict must be recorded for each.
type permit struct {
	gen   uint64
	probe bool
}

// acquire returns a permit, or how long the breaker stays open.
func (b *breaker) acquire() (p permit, wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Load() == stateOpen {
		if wait := b.remaining(); wait > 0 {
			return permit{}, wait, false
		}
		b.probes, b.successes = b.cfg.HalfOpenSuccesses, 0
		b.probe.Store(true)
		b.enter(stateHalfOpen)
		b.log.Info("money api breaker half-open", "probes", b.probes)
	}
	p = permit{gen: b.gen, probe: b.state.Load() == stateHalfOpen}
	if !p.probe {
		return p, 0, true
	}
	if b.probes == 0 {
		return permit{}, 0, false
	}
	b.probes--
	b.probe.Store(b.probes > 0)
	return p, 0, true
}

// record ends the permit of a call for key. It reports whether throttling is general: all calls must wait.
func (b *breaker) record(p permit, key string, v verdict) (throttled bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.gen != b.gen {
		return false
	}
	if p.probe {
		b.probed(key, v)
		return false
	}
	now := b.window.at(time.Since(b.start))
	switch v {
	case healthy:
		now.calls++
		now.ok++
		if k, known := b.bad[key]; known {
			k.healed = true
			b.bad[key] = k
		}
	case failing, misconfigured:
		now.calls++
		if b.counts(key) {
			now.failed++
		}
		if sum := b.window.sum(); b.general(sum, sum.failed, b.cfg.FailureRatio) {
			b.open(key, sum.failed, sum.calls)
		}
	case throttling:
		now.calls++
		if b.counts(key) {
			now.throttled++
		}
		if sum := b.window.sum(); b.general(sum, sum.throttled, throttledShare) {
			b.forget()
			return true
		}
	}
	return false
}

// general reports whether so many keys have the same trouble that all calls must wait.
func (b *breaker) general(sum slot, keys int, share float64) bool {
	return keys >= manyKeys && sum.calls >= b.cfg.MinCalls && float64(keys) >= share*float64(sum.ok+sum.failed+sum.throttled)
}

// counts notes that key was answered badly, and reports whether that counts against the API.
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

// probed ends a probe. A key that has opened the breaker can't open it again right away.
func (b *breaker) probed(key string, v verdict) {
	switch {
	case v == healthy, v == throttling:
		if b.successes++; b.successes >= b.cfg.HalfOpenSuccesses {
			b.opener = ""
			b.forget()
			b.enter(stateClosed)
			b.log.Info("money api breaker closed")
			return
		}
	case v != neutral && key != b.opener:
		b.open(key, 1, 1)
		return
	}
	b.probes++
	b.probe.Store(true)
}

func (b *breaker) open(key string, failed, total int) {
	wait := time.Duration(float64(b.cfg.OpenDelay) * (0.9 + 0.2*rand.Float64())) // so that a fleet doesn't probe in one moment
	b.log.Warn("money api breaker opened", "from", b.name(), "failed_keys", failed, "calls", total, "probe_after", wait)
	b.opener = key
	b.openUntil.Store(int64(time.Since(b.start) + wait))
	b.forget()
	b.enter(stateOpen)
}

func (b *breaker) enter(state int32) {
	b.gen++
	b.state.Store(state)
}

// forget begins the count again.
func (b *breaker) forget() {
	clear(b.bad)
	b.window.clear()
}

// accused notes whether an answer for key says that we are not set up right, and reports whether several keys in a row
// have been answered so.
func (b *breaker) accused(key string, v verdict) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case v == misconfigured && len(b.ownFaults) < manyKeys:
		b.ownFaults[key] = struct{}{}
	case v == healthy:
		clear(b.ownFaults)
	}
	return len(b.ownFaults) >= manyKeys
}

// ready reports whether a call begun now may get a permit.
func (b *breaker) ready() bool {
	switch b.state.Load() {
	case stateOpen:
		return b.remaining() == 0
	case stateHalfOpen:
		return b.probe.Load()
	default:
		return true
	}
}

// remaining returns how long the breaker stays open without a probe; 0 in other states.
func (b *breaker) remaining() time.Duration {
	if b.state.Load() != stateOpen {
		return 0
	}
	return max(0, time.Duration(b.openUntil.Load())-time.Since(b.start))
}

// name returns closed, half-open or open.
func (b *breaker) name() string { return [...]string{"closed", "half-open", "open"}[b.state.Load()] }

const windowSlots = 10

// window counts answers by slots of time.
type window struct {
	width time.Duration
	slots [windowSlots]slot
	now   int64 // number of the newest slot
}

// slot counts answers. A key that was answered badly is in failed or throttled of one slot of a window at most.
type slot struct{ calls, ok, failed, throttled int }

// at returns the slot of a moment, and empties those that it has left behind.
func (w *window) at(since time.Duration) *slot {
	n := int64(since / w.width)
	for i := max(w.now+1, n-windowSlots+1); i <= n; i++ {
		w.slots[i%windowSlots] = slot{}
	}
	w.now = max(w.now, n)
	return &w.slots[w.now%windowSlots]
}

// holds reports whether the slot with this number still counts.
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

func (w *window) clear() { w.slots = [windowSlots]slot{} }
