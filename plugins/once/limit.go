package once

import (
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rate"
)

// The names of the two limits, and of the rate that the far side answers, as labels.
const (
	limitPerSecond = "per_second"
	limitInFlight  = "in_flight"
	limitFarSide   = "far_side"
)

// limitPause is how long an instance waits at most before it looks again at a limit, which an operator may have
// changed, and before it asks again for slots that others have.
const limitPause = time.Second

// limiter is what an instance holds of the limits of one kind: tokens, each of which lets one call begin, and
// slots, each of which lets one run. It asks the ledger for them before it claims, so a call that has a lease
// never waits for a limit. Only the loop of its worker uses it.
type limiter struct {
	lease  time.Duration // of an effect
	limits ledger.Limits // in force at the last look

	tokens  int
	granted int       // how many the tokens were
	usable  time.Time // when they may be used, and when no more
	expires time.Time
	chunk   int // how many to ask for: as many as were used in their time the last time
	lost    int // tokens that nobody used, since the last read of it

	holds bool // the ledger may have a row of this instance
	slots int
	want  int       // the slots that were asked for
	asked time.Time // for slots
	most  int       // calls that ran at once since

	retry time.Time // the ledger has no tokens before
	used  time.Time // when a call began last
}

// allow returns how many of free calls may begin now, while running ones run, and asks the ledger if it has to.
// When none may begin, wait says for how long, unless the ledger was not asked yet for the limits that are new.
func (m *limiter) allow(limits ledger.Limits, free, running int, now func() time.Time, ask func(ledger.Ask) (ledger.Permit, error)) (n int, err error) {
	if limits != m.limits { // what it holds was given out for others
		*m = limiter{lease: m.lease, limits: limits, lost: m.lost + m.tokens, holds: m.holds}
	}
	at := now()
	m.expire(at)
	m.most = max(m.most, running)
	a := ledger.Ask{Running: running}
	if m.limits.InFlight > 0 {
		a.Slots = m.wantedSlots(at, free, running)
	}
	if m.limits.PerSecond > 0 && m.tokens == 0 && !at.Before(m.retry) && (m.limits.InFlight == 0 || a.Slots > 0 || m.room(at, running) > 0) {
		a.Tokens = max(1, m.chunk)
	}
	if a.Slots > 0 || a.Tokens > 0 {
		m.holds = m.holds || a.Slots > 0
		p, err := ask(a)
		if err != nil {
			return 0, err
		}
		if p.Limits != limits {
			return 0, nil // an operator has just changed them, which the next look says, too
		}
		m.take(a, p, at, now())
	}
	return m.may(now(), free, running), nil
}

// take notes what the ledger gave. It counts slots from before the ask, because the ledger forgets them then, and
// tokens from its answer, because they may be used no sooner.
func (m *limiter) take(a ledger.Ask, p ledger.Permit, before, after time.Time) {
	if a.Slots > 0 {
		m.slots, m.want, m.asked, m.most = p.Slots, a.Slots, before, a.Running
	}
	switch {
	case a.Tokens == 0:
	case p.Tokens > 0:
		m.tokens, m.granted, m.usable, m.expires = p.Tokens, p.Tokens, after.Add(p.Wait), before.Add(p.Wait+rate.Life)
		if least := m.usable.Add(rate.Chunk); m.expires.Before(least) { // the answer took long
			m.expires = least
		}
	default:
		m.retry = after.Add(min(p.Wait, limitPause))
	}
}

// wantedSlots returns how many slots to ask for now, and 0 when it is not time to ask.
func (m *limiter) wantedSlots(at time.Time, free, running int) int {
	full := running >= m.slots
	switch {
	case m.slots < m.want && at.Sub(m.asked) < m.pause(): // others have them
		return 0
	case full:
		return min(running+free, max(4, 2*m.slots))
	case at.Sub(m.asked) >= ledger.SlotUse(m.lease): // what it doesn't use goes back
		return min(running+free, m.most+1)
	}
	return 0
}

// pause is between two asks for slots that others have. Slots must not be too old to use meanwhile.
func (m *limiter) pause() time.Duration { return min(limitPause, ledger.SlotUse(m.lease)) }

// room returns how many slots are free. Slots are old after a while, because calls must end before the ledger
// forgets them.
func (m *limiter) room(at time.Time, running int) int {
	if at.Sub(m.asked) >= ledger.SlotUse(m.lease) {
		return 0
	}
	return m.slots - running
}

// may returns how many of free calls may begin.
func (m *limiter) may(at time.Time, free, running int) int {
	if m.limits.PerSecond > 0 {
		if at.Before(m.usable) || at.After(m.expires) {
			return 0
		}
		free = min(free, m.tokens)
	}
	if m.limits.InFlight > 0 {
		free = min(free, m.room(at, running))
	}
	return max(0, free)
}

// wait returns how long no call may begin, and the limit that says so.
func (m *limiter) wait(at time.Time, running int) (d time.Duration, limit string) {
	if m.limits.InFlight > 0 && m.slots < m.want && m.room(at, running) < 1 {
		if d := m.asked.Add(m.pause()).Sub(at); d > 0 {
			return d, limitInFlight
		}
	}
	if m.limits.PerSecond > 0 {
		until := m.retry
		if m.tokens > 0 {
			until = m.usable
		}
		return max(0, until.Sub(at)), limitPerSecond
	}
	return 0, ""
}

// begun notes n calls that began with what may has returned.
func (m *limiter) begun(n int, at time.Time) {
	if n == 0 {
		return
	}
	m.used = at
	if m.limits.PerSecond == 0 {
		return
	}
	if m.tokens -= n; m.tokens == 0 {
		m.chunk = m.granted
		if at.Sub(m.usable) <= rate.Life/2 { // twice as many are used in their time, too
			m.chunk *= 2
		}
	}
}

// expire loses the tokens that were not used in their time.
func (m *limiter) expire(at time.Time) {
	if m.tokens > 0 && at.After(m.expires) {
		m.chunk = m.granted - m.tokens
		m.lost, m.tokens = m.lost+m.tokens, 0
	}
}

// idle reports whether slots should go back, because no call has begun for a while.
func (m *limiter) idle(at time.Time) bool { return m.holds && at.Sub(m.used) >= limitPause }

// freed notes that the ledger has the slots again.
func (m *limiter) freed() { m.slots, m.want, m.holds = 0, 0, false }

// takeLost returns the tokens that were lost since it was called last.
func (m *limiter) takeLost() (n int) {
	n, m.lost = m.lost, 0
	return n
}
