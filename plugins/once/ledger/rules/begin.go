package rules

import "time"

func (p Policy) begin(row Row, ev Event) (Row, Writes, Decision) {
	now := ev.Now
	lost, isLost := p.lost(row)
	busyUntil := p.busyUntil(row)
	if at := p.quietAt(lost); isLost && at.After(busyUntil) {
		busyUntil = at
	}
	switch {
	case !ev.SameRequest:
		return row, Writes{DeadLetterClass: ClassConflict}, Decision{Next: Conflict, Reason: "conflict"}
	case row.State.Settled():
		return row, Writes{}, Decision{Next: Ack, Reason: "settled"}
	case busyUntil.After(now):
		row = row.queuedIn(QueueRetry, busyUntil)
		return row, Writes{}, Decision{Next: Retry, RetryIn: busyUntil.Sub(now), Reason: "leased"}
	case ev.Group == GroupPaused:
		return row.queuedIn(QueueNone, now), Writes{}, Decision{Next: Ack, Reason: "paused"}
	}

	if isLost {
		row = p.perhapsDone(row, lost)
	}
	cancelled := ev.Group == GroupCancelled
	switch {
	case cancelled && row.cancellable():
		row, eff := row.settled(Cancelled, now)
		return row, eff, Decision{Next: Ack, Reason: "cancelled"}
	case row.NextAttemptAt.After(now):
		row = row.queuedIn(QueueRetry, row.NextAttemptAt)
		return row, Writes{}, Decision{Next: Retry, RetryIn: row.NextAttemptAt.Sub(now), Reason: "not_due"}
	}

	var eff Writes
	if open, ok := row.OpenCall(); ok { // the lease expired, and the effect may have happened
		open.EndedAt, open.Outcome, open.Class = now, Interrupted, ClassLeaseExpired
		eff.Attempt = &open
		if !row.LookingUp { // a lookup does nothing
			row.MaybeDone, row.NotDoneSeen = true, false
		}
		row.Interruptions++
	}
	fail := func() (Row, Writes, Decision) {
		row.Epoch++ // a late answer must not match
		settled, final := row.settled(Failed, now)
		final.Attempt = eff.Attempt
		return settled, final, Decision{Next: Ack, Reason: "exhausted"}
	}
	if cancelled && !row.MaybeDone { // it was a lookup
		row.Epoch++
		settled, final := row.settled(Cancelled, now)
		final.Attempt = eff.Attempt
		return settled, final, Decision{Next: Ack, Reason: "cancelled"}
	}
	tooOld := p.tooOld(row, now)
	mustLookUp := tooOld && !row.NotDoneSeen && p.lookups() > 0
	if row.MaybeDone {
		mustLookUp = isLost && p.lookups() > 0 || row.LookingUp || cancelled || tooOld || !p.sendsUnclear() || p.sendsUsedUp(row)
	}
	switch {
	case !mustLookUp && p.sendsUsedUp(row), mustLookUp && row.Lookups >= p.lookups():
		return fail()
	case mustLookUp:
		row.Lookups++
		return p.lease(row, now, true), eff, Decision{Next: Lookup}
	}
	row.Attempts++
	if row.FirstSentAt.IsZero() {
		row.FirstSentAt = now
	}
	if row.KeyFirstUsedAt.IsZero() {
		row.KeyFirstUsedAt = row.FirstSentAt
	}
	return p.lease(row, now, false), eff, Decision{Next: Send}
}

func (p Policy) lease(row Row, now time.Time, lookingUp bool) Row {
	row.State, row.LookingUp = Sending, lookingUp
	row.Epoch++
	row.LeaseUntil, row.NextAttemptAt = now.Add(p.Lease), time.Time{}
	row.AttemptStartedAt, row.AttemptBy = now, p.Instance
	return row.queuedIn(QueueRetry, row.LeaseUntil)
}

// NextBegin returns the result of the next begin and its earliest time. It ignores a pause.
func (p Policy) NextBegin(row Row, group GroupState, now time.Time) (Next, time.Time) {
	at := now
	lost, _ := p.lost(row)
	for _, t := range []time.Time{p.busyUntil(row), row.NextAttemptAt, p.quietAt(lost)} {
		if t.After(at) {
			at = t
		}
	}
	if group == GroupPaused {
		group = GroupRunning
	}
	_, _, d := p.begin(row, Event{Kind: EventBegin, Now: at, Group: group, SameRequest: true})
	return d.Next, at
}

// sendsUsedUp reports whether no send is left.
func (p Policy) sendsUsedUp(row Row) bool {
	return row.Attempts >= p.MaxAttempts || row.Released >= p.MaxReleased
}
