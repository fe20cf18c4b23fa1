package oncehttp

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/slots"
)

const (
	// paceChunk is the time whose calls a caller of Take gets at once, because it begins them in one transaction.
	paceChunk = 25 * time.Millisecond
	// paceLook is the least time between two judgements of the rate, and paceCalls the answers that one needs,
	// unless they take longer than paceLong.
	paceLook, paceLong = 200 * time.Millisecond, 2 * time.Second
	paceCalls          = 20
	// paceRefused is the share of refused calls that is not yet a reason for a lower rate. A limit that some
	// effects have for themselves, such as one per customer, must not slow the others down.
	paceRefused = 0.05
	// paceLower is the part of what the far side did not refuse that is asked of it then.
	paceLower = 0.95
	// paceGrowthMax is the growth per second while no answer has shown the limit yet, and paceGrowth the one after
	// a judgement that lowered the rate. It doubles every paceDoubles without one, up to paceGrowthMax, and is never
	// more than paceProof for each answer.
	paceGrowth, paceGrowthMax, paceProof = 0.025, 1.0, 0.01
	paceDoubles                          = 5 * time.Second
	// paceIdle is how long nobody has to wait for the rate before there is none.
	paceIdle = time.Minute
)

// pace is how many calls per second may begin after the far side has throttled all calls. The rate begins below
// what it answered in the last second, grows while it refuses few, and falls below what it answers when it refuses
// more, see docs/decisions/0039-rate-after-throttling.md.
//
// It is safe for concurrent use.
type pace struct {
	turn   chan struct{} // capacity 1: one caller of wait has the timer
	ended  chan struct{}
	ending sync.Once

	mu     sync.Mutex
	start  time.Time
	recent window // healthy answers of the last second

	rate    float64   // 0: there is none
	least   float64   // what answers alone can't lower it below
	next    time.Time // from when on tokens were not taken yet
	held    time.Time // when a caller had to wait last
	found   bool      // answers to calls at the rate have shown the limit
	lowered time.Time // when the rate was lowered last; calls from before say nothing about it
	judged  time.Time
	calls   int // answers since then
	refused int // of them
}

func newPace() *pace {
	return &pace{turn: make(chan struct{}, 1), ended: make(chan struct{}), start: time.Now(), recent: window{width: time.Second / windowSlots}}
}

// lower begins a rate, or lowers it, because the far side throttles all calls, as the answer to the one that began then
// has shown.
func (p *pace) lower(began, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on(now) && !began.After(p.lowered) {
		return
	}
	p.recent.at(now.Sub(p.start))
	p.found, p.held = false, now
	p.change(max(1, paceLower*float64(p.recent.sum().ok)), now)
	p.least = max(1, p.rate/2)
}

// change sets a rate. The caller holds mu.
func (p *pace) change(rate float64, now time.Time) {
	p.rate, p.lowered, p.judged, p.calls, p.refused = rate, now, now, 0, 0
}

// on reports whether there is a rate, and ends one that nobody has waited for. The caller holds mu.
func (p *pace) on(now time.Time) bool {
	if p.rate > 0 && now.Sub(p.held) > paceIdle {
		p.rate = 0
	}
	return p.rate > 0
}

// answered learns from the answer of a call.
func (p *pace) answered(began, now time.Time, v verdict) {
	if v != healthy && v != throttling {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.recent.at(now.Sub(p.start)); v == healthy {
		at.ok++
	}
	if !p.on(now) || !began.After(p.lowered) {
		return
	}
	if p.calls++; v == throttling {
		p.refused++
	}
	took := now.Sub(p.judged)
	if took < paceLook || p.calls < paceCalls && took < paceLong {
		return
	}
	if refused := float64(p.refused) / float64(p.calls); refused > paceRefused {
		p.found = true
		p.change(max(p.least, paceLower*(1-refused)*p.rate), now)
		return
	}
	if p.held.After(p.judged) { // else the rate is not what limits the calls
		seconds := min(took, paceLong).Seconds()
		growth := paceGrowthMax * seconds
		if p.found {
			growth = min(growth, paceGrowth*math.Exp2(now.Sub(p.lowered).Seconds()/paceDoubles.Seconds())*seconds, paceProof*float64(p.calls))
		}
		p.rate *= 1 + growth
	}
	p.judged, p.calls, p.refused = now, 0, 0
}

// take returns how many of n calls may begin, and counts them. When none may, wait is until some may.
func (p *pace) take(n int, now time.Time) (may int, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on(now) {
		return n, 0
	}
	each := max(1, time.Duration(float64(time.Second)/p.rate))
	chunk := min(n, max(1, int(paceChunk/each)))
	if longest := now.Add(-max(2*paceChunk, each)); p.next.Before(longest) {
		p.next = longest
	}
	if may = min(n, int(now.Sub(p.next)/each)); may < n {
		p.held = now
	}
	if may < chunk {
		return 0, p.next.Add(time.Duration(chunk) * each).Sub(now)
	}
	p.next = p.next.Add(time.Duration(may) * each)
	return may, 0
}

// wait waits until a call may begin, and counts it. Callers do not get their turns in the order of their calls.
func (p *pace) wait(ctx context.Context) error {
	if may, _ := p.take(1, time.Now()); may == 1 {
		return nil
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ended:
		return slots.ErrNoMore
	}
	for {
		may, wait := p.take(1, time.Now())
		if may == 1 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-p.ended:
			timer.Stop()
			return slots.ErrNoMore
		}
	}
}

// end ends all waits, now and later. It is idempotent.
func (p *pace) end() { p.ending.Do(func() { close(p.ended) }) }

// reading returns the rate, and 0 if there is none.
func (p *pace) reading() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on(time.Now()) {
		return 0
	}
	return p.rate
}
