package rules

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
		// The record may be redelivered because its entry was never added.
		if row.Queue == QueueStream {
			row = row.queuedIn(QueueNone, ev.Now)
		}
		return row, Effects{}, Decision{Next: Paused}
	case ev.PayNow:
		if row.Queue == QueueNone {
			row = row.queuedIn(QueueRetry, ev.Now.Add(p.Lease))
		}
		return row, Effects{}, Decision{Next: Pay}
	default:
		if row.Queue == QueueNone {
			row = row.queuedIn(QueueStream, ev.Now)
		}
		return row, Effects{}, Decision{Next: Enqueue}
	}
}
