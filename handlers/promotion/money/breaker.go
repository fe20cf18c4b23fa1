package money

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
)

// verdict is what an answer says about the API's health.
type verdict uint8

const (
	healthy verdict = iota // it works, whatever it answered
	failing                // it does not work
	neutral                // the call says nothing, such as one that its caller cancelled
	trip                   // stop calling at once: a person must act
)

// breaker is failsafe-go's circuit breaker with what the client needs around it: results are only
// counted in the state in which their call began (otherwise calls begun before the breaker opened
// would decide the probes' outcome), and readiness can be read without a lock.
type breaker struct {
	log *slog.Logger

	mu     sync.Mutex // around every call into cb, so that gen and probes move with its state
	cb     circuitbreaker.CircuitBreaker[any]
	gen    uint64 // counts changes of state
	probes int    // permits left while half-open

	start     time.Time
	state     atomic.Int32 // circuitbreaker.State
	openUntil atomic.Int64 // nanoseconds after start
	probe     atomic.Bool  // a permit is left while half-open
}

func newBreaker(cfg BreakerConfig, log *slog.Logger) *breaker {
	b := &breaker{log: log, start: time.Now()}
	b.cb = circuitbreaker.NewBuilder[any]().
		WithFailureRateThreshold(cfg.FailureRatio, uint(cfg.MinCalls), cfg.Window).
		WithDelay(cfg.OpenDelay).
		WithJitterFactor(0.1). // so that a fleet doesn't probe in one moment
		WithSuccessThreshold(uint(cfg.HalfOpenSuccesses)).
		OnStateChanged(func(e circuitbreaker.StateChangedEvent) { b.changed(e, cfg.HalfOpenSuccesses) }).
		Build()
	return b
}

// changed is called by the library within a call into it, so with b.mu held.
func (b *breaker) changed(e circuitbreaker.StateChangedEvent, probes int) {
	b.gen++
	switch e.NewState {
	case circuitbreaker.OpenState:
		wait := b.cb.RemainingDelay()
		b.openUntil.Store(int64(time.Since(b.start) + wait))
		b.log.Warn("money api breaker opened", "from", e.OldState.String(), "failures", e.Metrics().Failures(),
			"calls", e.Metrics().Executions(), "probe_after", wait)
	case circuitbreaker.HalfOpenState:
		b.probes = probes
		b.probe.Store(true)
		b.log.Info("money api breaker half-open", "probes", probes)
	case circuitbreaker.ClosedState:
		b.log.Info("money api breaker closed")
	}
	b.state.Store(int32(e.NewState))
}

// permit is the right to make one call. Exactly one of its holders' verdicts must be recorded.
type permit struct {
	gen   uint64
	probe bool
}

// acquire returns a permit, or how long the breaker stays open.
func (b *breaker) acquire() (p permit, wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.cb.TryAcquirePermit() {
		return permit{}, b.cb.RemainingDelay(), false
	}
	p = permit{gen: b.gen, probe: b.cb.IsHalfOpen()}
	if p.probe {
		b.probes--
		b.probe.Store(b.probes > 0)
	}
	return p, 0, true
}

// record ends a permit.
func (b *breaker) record(p permit, v verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v == trip {
		b.cb.Open()
		return
	}
	if p.gen != b.gen {
		return
	}
	switch {
	case v == healthy:
		b.cb.RecordSuccess()
	case v == failing || p.probe:
		b.cb.RecordFailure()
	}
	if p.probe && p.gen == b.gen {
		b.probes++
		b.probe.Store(true)
	}
}

// ready reports whether a call begun now may get a permit.
func (b *breaker) ready() bool {
	switch circuitbreaker.State(b.state.Load()) {
	case circuitbreaker.OpenState:
		return b.remaining() == 0
	case circuitbreaker.HalfOpenState:
		return b.probe.Load()
	default:
		return true
	}
}

// remaining returns how long the breaker stays open without a probe; 0 in other states.
func (b *breaker) remaining() time.Duration {
	if circuitbreaker.State(b.state.Load()) != circuitbreaker.OpenState {
		return 0
	}
	return max(0, time.Duration(b.openUntil.Load())-time.Since(b.start))
}

// name returns closed, half-open or open.
func (b *breaker) name() string { return circuitbreaker.State(b.state.Load()).String() }
