package rules

import "time"

func (p Policy) accept(row Row, ev Event) (Row, Writes, Decision) {
	row.State, row.AcceptedAt = Pending, ev.Now
	if lost, ok := p.lostRecord(row, ev.Published); ok {
		row = p.perhapsDone(row, lost)
		if at := p.quietAt(lost); at.After(row.NextAttemptAt) {
			row.NextAttemptAt = at
		}
	}
	switch {
	case ev.Group == GroupCancelled && !row.MaybeDone:
		row = row.queuedIn(QueueNone, ev.Now)
		row, eff := row.settled(Cancelled, ev.Now)
		return row, eff, Decision{Next: Settled}
	case ev.Group == GroupPaused:
		return row.queuedIn(QueueNone, ev.Now), Writes{}, Decision{Next: Paused}
	case ev.CallNow:
		return row.queuedIn(QueueRetry, ev.Now.Add(p.Lease)), Writes{}, Decision{Next: CallNow}
	case ev.StreamFull:
		return row.queuedIn(QueueNone, ev.Now), Writes{}, Decision{Next: Overflow}
	default:
		return row.queuedIn(QueueStream, ev.Now), Writes{}, Decision{Next: Enqueue}
	}
}

func (p Policy) acceptAgain(row Row, ev Event) (Row, Writes, Decision) {
	switch {
	case !ev.SameRequest:
		return row, Writes{DeadLetterClass: ClassConflict}, Decision{Next: Conflict}
	case row.State.Settled():
		return row, Writes{}, Decision{Next: Settled}
	case ev.Group == GroupCancelled && p.cancellable(row):
		row, eff := row.settled(Cancelled, ev.Now)
		return row, eff, Decision{Next: Settled}
	case ev.Group == GroupPaused:
		return row.withoutEntry(ev.Now), Writes{}, Decision{Next: Paused}
	case ev.CallNow:
		if row.Queue == QueueNone {
			row = row.queuedIn(QueueRetry, ev.Now.Add(p.Lease))
		}
		return row, Writes{}, Decision{Next: CallNow}
	case ev.StreamFull:
		return row.withoutEntry(ev.Now), Writes{}, Decision{Next: Overflow}
	default:
		if row.Queue == QueueNone {
			row = row.queuedIn(QueueStream, ev.Now)
		}
		return row, Writes{}, Decision{Next: Enqueue}
	}
}

// withoutEntry is for a record that perhaps is redelivered because its entry was never added.
func (r Row) withoutEntry(now time.Time) Row {
	if r.Queue == QueueStream {
		return r.queuedIn(QueueNone, now)
	}
	return r
}
