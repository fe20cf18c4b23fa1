package rules

import (
	"fmt"
	"time"
)

func (p Policy) settle(row Row, ev Event) (Row, Writes, Decision) {
	res, now := ev.Result, ev.Now
	attempt := &Attempt{Epoch: res.Epoch, Number: row.Attempts, Kind: row.callKind(), Instance: row.AttemptBy,
		StartedAt: row.AttemptStartedAt, EndedAt: now, Outcome: res.Outcome, Class: res.Class, Answer: res.Answer, Status: res.Status}
	switch {
	case res.Epoch != row.Epoch:
		// The attempt of that epoch has the worker's data; only the answer is new.
		attempt.Late, attempt.Number, attempt.Kind, attempt.Instance, attempt.StartedAt = true, 0, CallSend, p.Instance, time.Time{}
		if res.Outcome == Done {
			attempt.Receipt = res.Receipt
		}
		return row, Writes{Attempt: attempt}, Decision{Next: Ack, Stale: true}
	case row.State != Sending:
		d := Decision{Next: Ack, Repeated: true}
		if !row.State.Settled() && !res.fed() {
			d.Next, d.RetryIn = Retry, max(0, row.NextAttemptAt.Sub(now))
		}
		return row, Writes{}, d
	}

	row.LeaseUntil = time.Time{}
	if row.LastError == "" || res.Outcome != NotSent && res.Outcome != Interrupted {
		row.LastClass, row.LastError = res.Class, res.Answer // a call that was not sent has no answer
	}
	finish := func(s State) (Row, Writes, Decision) {
		row, eff := row.settled(s, now)
		eff.Attempt = attempt
		if eff.DeadLetterClass == ClassFailed && res.Class != "" {
			eff.DeadLetterClass = res.Class
		}
		return row, eff, Decision{Next: Ack}
	}
	if res.Outcome == Done {
		row.Receipt, row.LastClass, row.LastError = res.Receipt, "", ""
		return finish(Success)
	}

	refused := p.refusedLate(row, res, now)
	if res.Counted && res.Outcome.released() || refused {
		row.Released++
	}
	wasSend := !row.LookingUp
	if row.LookingUp {
		p.settleLookup(&row, res.Outcome)
	} else if rejected := p.settleSend(&row, res.Outcome); rejected && !row.MaybeDone {
		return finish(Failed)
	}
	if p.exhausted(row) && !(res.postponed && p.unclearEnds()) { // whose dead letter is refused, too
		if refused {
			row.LastError = fmt.Sprintf("its key is %s old and its lookups are refused, the last one: %s", row.KeyAge(now).Truncate(time.Minute), res.Answer)
		}
		return finish(Failed) // which is UNKNOWN when it may have happened
	}

	row.State = Errored
	if row.MaybeDone {
		row.State = Ambiguous
	}
	delay := time.Duration(0)
	if res.Outcome == Interrupted {
		row.Interruptions++
	} else {
		row.Failures++
		delay = max(p.Delay(row.Failures), res.RetryAfter).Truncate(time.Microsecond) // as stored
	}
	if p.Repeat == ByLookup && row.MaybeDone && wasSend {
		delay = max(delay, p.UnderWay) // an earlier lookup would prove nothing
	}
	row.NextAttemptAt = now.Add(delay)
	if res.fed() {
		return row.queuedIn(QueueNone, now), Writes{Attempt: attempt}, Decision{Next: Ack}
	}
	row = row.queuedIn(QueueRetry, row.NextAttemptAt)
	return row, Writes{Attempt: attempt}, Decision{Next: Retry, RetryIn: delay}
}

// settleSend applies a send that did not end done. It reports whether the far side refused permanently.
func (p Policy) settleSend(row *Row, o Outcome) (rejected bool) {
	if o.released() {
		row.Attempts--
	}
	lookedUp := row.NotDoneSeen
	row.NotDoneSeen = false
	switch o {
	case NotSent, Interrupted:
		row.NotDoneSeen = lookedUp // the far side has received no request since
		if row.KeyFirstUsedAt.Equal(row.AttemptStartedAt) {
			row.KeyFirstUsedAt = time.Time{} // this call would have been the first use
		}
	case Throttled, Misconfigured:
		if lookedUp && !row.MaybeDone {
			row.Lookups-- // the next send needs another lookup, and no attempt was spent
		}
	case TryAgain:
	case Rejected:
		// Only this request was refused; an earlier one may have taken effect: look it up.
		rejected = true
	default:
		row.MaybeDone = true
	}
	if !row.MaybeDone {
		row.FirstSentAt = time.Time{}
		return rejected
	}
	row.LookingUp = rejected || p.sendsUsedUp(*row) || !p.sendsUnclear()
	return rejected
}

// settleLookup applies a lookup that did not end done. What may have happened stays possible, unless the
// far side has no keys: such a lookup begins when no request is under way any more.
func (p Policy) settleLookup(row *Row, o Outcome) {
	switch {
	case o.released():
		row.Lookups--
	case o == NotDone && p.Repeat == ByLookup:
		row.MaybeDone, row.LookingUp, row.FirstSentAt = false, false, time.Time{}
	case o == NotDone:
		// No proof, because a request may be under way. The next begin sends again if a send is
		// left, the key is young enough, and the group is not cancelled.
		row.NotDoneSeen = true
		row.LookingUp = row.MaybeDone && p.sendsUsedUp(*row)
	}
}

// refusedLate reports whether a lookup counts towards MaxReleased although no other effect was
// answered meanwhile. Lookups that are refused because of our credentials or by a proxy, or
// throttled, are released without a limit, because an outage must not end an effect. Once the key is
// old the far side may have forgotten it, and later lookups prove less and less.
func (p Policy) refusedLate(row Row, res CallResult, now time.Time) bool {
	switch res.Outcome {
	case Throttled, Unrecognized, Misconfigured:
		return row.LookingUp && row.MaybeDone && !res.postponed && p.tooOld(row, now)
	}
	return false
}

// exhausted reports whether neither a send nor a lookup is left.
func (p Policy) exhausted(row Row) bool {
	if !row.MaybeDone && !row.LookingUp {
		return p.sendsUsedUp(row)
	}
	return row.LookingUp && (row.Lookups >= p.lookups() || row.Released >= 2*p.MaxReleased)
}
