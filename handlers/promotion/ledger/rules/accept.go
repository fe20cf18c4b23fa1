package rules

import "time"

func (p Policy) accept(row Row, ev Event) (Row, Effects, Decision) {
	row.State, row.AcceptedAt = Pending, ev.Now
	switch {
	case ev.Promotion == PromotionCancelled:
		row = row.queuedIn(QueueNone, ev.Now)
		row, eff := row.settled(Cancelled, ev.Now)
		return row, eff, Decision{Next: Done}
	case ev.Promotion == PromotionPaused:
		return row.queuedIn(QueueNone, ev.Now), Effects{}, Decision{Next: Paused}
	case ev.PayNow:
		return row.queuedIn(QueueRetry, ev.Now.Add(p.Lease)), Effects{}, Decision{Next: Pay}
	case ev.StreamFull:
		return row.queuedIn(QueueNone, ev.Now), Effects{}, Decision{Next: Overflow}
	default:
		return row.queuedIn(QueueStream, ev.Now), Effects{}, Decision{Next: Enqueue}
	}
}

func (p Policy) acceptAgain(row Row, ev Event) (Row, Effects, Decision) {
	switch {
	case !ev.SameRequest:
		return row, Effects{DeadLetterClass: ClassConflict}, Decision{Next: Conflict}
	case row.State.Settled():
		return row, Effects{}, Decision{Next: Done}
	case ev.Promotion == PromotionCancelled && row.cancellable():
		row, eff := row.settled(Cancelled, ev.Now)
		return row, eff, Decision{Next: Done}
	case ev.Promotion == PromotionPaused:
		return row.withoutEntry(ev.Now), Effects{}, Decision{Next: Paused}
	case ev.PayNow:
		if row.Queue == QueueNone {
			row = row.queuedIn(QueueRetry, ev.Now.Add(p.Lease))
		}
		return row, Effects{}, Decision{Next: Pay}
	case ev.StreamFull:
		return row.withoutEntry(ev.Now), Effects{}, Decision{Next: Overflow}
	default:
		if row.Queue == QueueNone {
			row = row.queuedIn(QueueStream, ev.Now)
		}
		return row, Effects{}, Decision{Next: Enqueue}
	}
}

// withoutEntry is for a record that perhaps is redelivered because its entry was never added.
func (r Row) withoutEntry(now time.Time) Row {
	if r.Queue == QueueStream {
		return r.queuedIn(QueueNone, now)
	}
	return r
}
