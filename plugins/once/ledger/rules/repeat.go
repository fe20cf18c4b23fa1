package rules

import (
	"fmt"
	"time"
)

// Repeat says what the far side does with a second request for the same effect. It decides what
// follows a call that may have taken effect. There is no default, because a wrong one loses or
// doubles effects: the zero value is treated as Never, which does neither.
type Repeat int

// What far sides do.
const (
	// ByKey: it knows the idempotency key for Policy.KeyTTL, and executes a request once. The same
	// request is sent again while the key is young, and looked up afterwards, if MaxLookups allows.
	ByKey Repeat = iota + 1
	// ByLookup: it knows no keys, and a lookup finds an effect. The request is sent again only if a
	// lookup that began Policy.UnderWay after the last send has found nothing.
	ByLookup
	// Never: it has neither. An effect that may have happened is UNKNOWN at once.
	Never
	// Always: it has neither, and a second effect does no harm. The request is sent again.
	Always
)

// String returns key, lookup, never or always.
func (r Repeat) String() string {
	switch r {
	case ByKey:
		return "key"
	case ByLookup:
		return "lookup"
	case Never:
		return "never"
	case Always:
		return "always"
	}
	return fmt.Sprintf("Repeat(%d)", int(r))
}

// Validate returns an error for a value that is not one of the four cases, such as the zero value.
func (r Repeat) Validate() error {
	if r < ByKey || r > Always {
		return fmt.Errorf("once: %s says nothing about a second request: set ByKey, ByLookup, Never or Always", r)
	}
	return nil
}

// lookups returns how many lookups an effect has.
func (p Policy) lookups() int {
	if p.Repeat == ByKey || p.Repeat == ByLookup {
		return p.MaxLookups
	}
	return 0
}

// sendsUnclear reports whether a request is sent again although an earlier one may have taken
// effect.
func (p Policy) sendsUnclear() bool { return p.Repeat == ByKey || p.Repeat == Always }

// unclearEnds reports whether an effect that may have happened is never called again.
func (p Policy) unclearEnds() bool { return !p.sendsUnclear() && p.lookups() == 0 }

// tooOld reports whether the far side may have forgotten the key.
func (p Policy) tooOld(row Row, now time.Time) bool {
	return p.Repeat == ByKey && row.KeyAge(now) > p.KeyTTL
}

// busyUntil returns the time before which no other worker may begin: the end of the lease. A lookup
// proves something only when no request can arrive after it, so ByLookup also waits until a request
// of the lease's last moment has arrived.
func (p Policy) busyUntil(row Row) time.Time {
	if row.State != Sending {
		return time.Time{}
	}
	if p.Repeat == ByLookup && !row.LookingUp {
		return row.LeaseUntil.Add(p.UnderWay)
	}
	return row.LeaseUntil
}
