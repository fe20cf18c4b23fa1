package room

import "math"

// The states of a room.
const (
	scheduled = "scheduled"
	preQueued = PreQueue
	drawing   = Drawing
	opened    = "open"
	paused    = "paused"
	draining  = "draining"
	closed    = "closed"
)

// life is what an operator decides about a room, with the schedule and the rate of promotions.
type life struct {
	state, mode       string
	most              int64 // leases at once
	perMinute         int64 // promotions; negative: no limit
	credit            int64 // promotions that perMinute allows now, in parts of share
	opensAt, closesAt int64 // ms of the server's clock; 0: no schedule

	heldFrom  string // state before the hold
	closedFor string // why the room was closed, for its users

	commitment string // of the shuffle; empty: none
	lottery
}

// share: a promotion has that many parts. The rates of the histories earn whole parts per ms.
const share = 10_000

func newLife() life { return life{state: opened, mode: FIFO, most: math.MaxInt64, perMinute: -1} }

// refusal says why new users are refused.
func (m *model) refusal(user string) string {
	switch {
	case m.state == closed:
		return m.closedFor
	case m.soldOut():
		return "sold_out"
	case m.full(user):
		return "bought"
	case m.state == draining, m.state == paused && m.heldFrom == draining:
		return "draining"
	case m.mode == Reject:
		return "reject"
	}
	return ""
}

// soldOut reports whether no seat is left, not even for the leases that exist.
func (m *model) soldOut() bool { return m.capacity >= 0 && m.sold > 0 && m.sold >= m.capacity }

// limitOfLeases is the concurrency. A room that lets pass has no limit but the seats.
func (m *life) limitOfLeases() int64 {
	if m.mode == PassThrough {
		return math.MaxInt64
	}
	return m.most
}

// earn adds the promotions that are allowed for a time with ticks. They add up to those of two
// ticks, and at least one.
func (m *model) earn(ms int64) {
	if m.perMinute >= 0 {
		part := m.perMinute * share / 60_000
		m.credit = min(m.credit+part*ms, max(share, 2*part*m.o.PromoteInterval.Milliseconds()))
	}
}

// able is how many users may be promoted now.
func (m *model) able() int64 {
	if m.perMinute < 0 || m.mode == PassThrough {
		return m.free()
	}
	return min(m.free(), m.credit/share)
}

func (m *life) spend(promotions int) {
	if m.perMinute >= 0 && m.mode != PassThrough {
		m.credit -= int64(promotions) * share
	}
}

// schedule opens and closes the room when its time has come.
func (m *model) schedule() {
	clock := m.now / 1000
	if m.state == scheduled && m.opensAt > 0 && clock >= m.opensAt {
		m.state = opened
	}
	if m.state != closed && m.closesAt > 0 && clock >= m.closesAt {
		m.state, m.closedFor = closed, "room_closed"
	}
	if m.state != closed && m.o.CloseSoldOut && m.lastSeat {
		m.state, m.closedFor = closed, "sold_out"
	}
}

// control is a change by an operator.
func (m *model) control(c Change) error {
	next := m.state
	switch c.Verb {
	case Open:
		next = opened
		if m.state == preQueued || m.state == drawing {
			next = m.state
		}
	case Hold:
		if m.state != opened && m.state != scheduled && m.state != draining {
			return ErrConflict
		}
		next, m.heldFrom = paused, m.state
	case Resume:
		if m.state != paused {
			return ErrConflict
		}
		next = m.heldFrom
	case Drain:
		if m.state == draining || m.state == closed || m.state == preQueued || m.state == drawing {
			return ErrConflict
		}
		next = draining
	case Close:
		if m.state == closed {
			return ErrConflict
		}
		next, m.closedFor = closed, "room_closed"
	}
	next, err := m.shuffled(c, next)
	if err != nil {
		return err
	}
	if c.OpensAt != nil || c.ClosesAt != nil {
		opens, closes := m.opensAt, m.closesAt
		if c.Verb == Open {
			opens, closes = 0, 0
		}
		if c.OpensAt != nil {
			opens = *c.OpensAt
		}
		if c.ClosesAt != nil {
			closes = *c.ClosesAt
		}
		if closes > 0 && (closes <= opens || c.ClosesAt != nil && closes <= m.now/1000) {
			return ErrTimes
		}
	}
	if c.Verb == Open {
		m.opensAt, m.closesAt = 0, 0
	}
	limit := func(to, from *int64, none int64) {
		if from != nil {
			*to = *from
			if *from < 0 {
				*to = none
			}
		}
	}
	limit(&m.capacity, c.Capacity, 0)
	m.lastSeat = m.lastSeat && c.Verb != Open && c.Capacity == nil
	limit(&m.most, c.Concurrency, math.MaxInt64)
	limit(&m.perMinute, c.PerMinute, -1)
	limit(&m.opensAt, c.OpensAt, 0)
	limit(&m.closesAt, c.ClosesAt, 0)
	if c.Mode != nil {
		m.mode = *c.Mode
	}
	switch {
	case c.Verb != Open:
	case next == preQueued && !shuffles(c) && m.opensAt == 0:
		m.opensAt = m.now / 1000
	case next == opened && m.opensAt > m.now/1000:
		next = scheduled
	}
	m.state = next
	return nil
}
