package rules

import (
	"fmt"
	"time"
)

// restored is the last class of an effect that may have been called for in a time that the ledger has lost.
const restored = "ledger_restored"

// Lost is a time whose calls the ledger does not know, because its database was restored: it is as it was at
// Since, and effects were called for until Until at the latest.
type Lost struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// lost returns the time in which an effect may have been called for without a trace; ok is false if there is
// none. An effect that was called for afterwards has met the loss, and one that was not due before could not.
func (p Policy) lost(row Row) (all Lost, ok bool) {
	for _, l := range p.Lost {
		var met bool
		switch {
		case row.State.Settled(): // an operator may have replayed it
			met = row.SettledAt.Before(l.Until)
		default:
			met = row.AcceptedAt.Before(l.Until) && row.AttemptStartedAt.Before(l.Until) && (row.State == Sending || !row.NextAttemptAt.After(l.Until))
		}
		if met {
			all, ok = all.with(l), true
		}
	}
	return all, ok
}

// lostRecord returns the time in which a record that is accepted now may have been accepted and called for
// before, by the time at which it was published. A zero time is a caller's, who asks now.
func (p Policy) lostRecord(row Row, published time.Time) (all Lost, ok bool) {
	for _, l := range p.Lost {
		if !published.IsZero() && published.Before(l.Until) && !row.NextAttemptAt.After(l.Until) {
			all, ok = all.with(l), true
		}
	}
	return all, ok
}

func (l Lost) with(other Lost) Lost {
	if l.Until.IsZero() {
		return other
	}
	if other.Since.Before(l.Since) {
		l.Since = other.Since
	}
	if other.Until.After(l.Until) {
		l.Until = other.Until
	}
	return l
}

// MayBeLost returns the time in which an effect that is not settled may have been called for without a trace.
func (p Policy) MayBeLost(row Row) (l Lost, ok bool) {
	if row.State.Settled() {
		return Lost{}, false
	}
	return p.lost(row)
}

// perhapsDone marks an effect that may have been called for in the lost time. The key is assumed to be as old
// as it can be, and what can be looked up is, before anything is sent.
func (p Policy) perhapsDone(row Row, l Lost) Row {
	row.MaybeDone, row.NotDoneSeen, row.Lookups = true, false, 0
	row.LastClass = restored
	row.LastError = fmt.Sprintf("the ledger was restored: calls from %s to %s are not in it", l.Since.UTC().Format(time.RFC3339), l.Until.UTC().Format(time.RFC3339))
	if row.FirstSentAt.IsZero() || row.FirstSentAt.After(l.Since) {
		row.FirstSentAt = l.Since
	}
	if row.State != Sending { // in which LookingUp says what the call is
		row.State, row.LookingUp = Ambiguous, p.lookups() > 0
	}
	return row
}

// quietAt is the time from which a lookup proves that no request of the lost time has arrived or will.
func (p Policy) quietAt(l Lost) time.Time {
	if p.Repeat == ByLookup {
		return l.Until.Add(p.UnderWay)
	}
	return time.Time{}
}
