package room

import (
	"errors"
	"fmt"

	"github.com/millrace-io/millrace/plugins/redis"
)

// operate is an action of an operator.
func (h *history) operate(s step) {
	switch s.kind {
	case "capacity":
		h.control(Change{Verb: Set, Capacity: new(int64(s.n / 2))})
		h.mayExceed = true
	case "concurrency":
		h.control(Change{Verb: Set, Concurrency: new(int64(s.n/3) - 1)})
	case "per minute":
		h.control(Change{Verb: Set, PerMinute: new([]int64{-1, -1, 0, 6, 12, 30, 60, 60, 120, 600}[s.n])})
	case "mode":
		h.control(Change{Verb: Set, Mode: new([]string{FIFO, FIFO, PassThrough, Reject, Shuffle}[s.n%5])})
	case "pre-queue":
		h.preQueue(int64(s.n%5) * 4)
	case "schedule":
		clock := h.now / 1000
		switch {
		case s.user == 4:
			h.control(Change{Verb: Set, OpensAt: new(clock + int64(s.n)*3000)})
		case s.n%2 == 0:
			h.control(Change{Verb: Open, OpensAt: new(clock + int64(s.n)*1000)})
		default:
			h.control(Change{Verb: Set, ClosesAt: new(clock + int64(s.n-2)*3000)})
		}
	default:
		h.control(Change{Verb: s.kind})
	}
}

func (h *history) control(c Change) {
	c.By, c.Why = "ann", "a test"
	got, err := h.rooms.Control(h.ctx, h.event, c)
	want := h.m.control(c)
	if shuffles(c) && want == nil {
		h.committed(got.Commitment)
	}
	if !errors.Is(err, redis.ErrNotReplicated) || !h.stopped() {
		h.sameError(err, want)
	}
	text := c.Verb
	for name, value := range map[string]*int64{
		"capacity": c.Capacity, "concurrency": c.Concurrency, "per minute": c.PerMinute, "opens at": c.OpensAt, "closes at": c.ClosesAt,
	} {
		if value != nil {
			text += fmt.Sprintf(" %s %d", name, *value)
		}
	}
	if c.Mode != nil {
		text += " " + *c.Mode
	}
	if want == nil {
		h.logf("operator: %s", text)
	}
}
