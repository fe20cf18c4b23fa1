package ledger

import "time"

// ClassResolved is the class of a payout that a person has declared unpaid.
const ClassResolved = "resolved_unpaid"

// What only a person may do: take a payout out of a final state. Either is a new epoch, so that an answer which still
// comes in is evidence and changes nothing.

// replay gives a payout that was given up all its attempts back. What may have been charged stays so, and how
// long its key has been in use is not forgotten: the next begin sends or asks by the same rules as ever.
func (p policy) replay(row Row, ev event) (Row, effects, decision) {
	switch {
	case row.State == Success:
		return row, effects{}, decision{refused: "it is paid, transaction key " + row.TransactionKey}
	case row.State == Cancelled:
		return row, effects{}, decision{refused: "it was cancelled with its promotion"}
	case !row.State.Settled():
		return row, effects{}, decision{refused: "it is " + string(row.State) + ": it is being paid"}
	case ev.promotion == PromotionCancelled:
		return row, effects{}, decision{refused: "its promotion is cancelled"}
	}
	eff := effects{left: row.State}
	row.State = Pending
	if row.MaybeCharged {
		row.State = Ambiguous
	}
	row.Epoch++
	row.Attempts, row.Asks, row.Released, row.Failures, row.Asking, row.NoChargeSeen = 0, 0, 0, 0, false, false
	row.SettledAt, row.NextAttemptAt = time.Time{}, time.Time{}
	return row.hinted(HintNone, ev.now), eff, decision{}
}

// resolve books a person's word, which alone may deny a possible charge. An UNKNOWN payout waits for it. An AMBIGUOUS one of
// which only lookups are left may be looked up without an end, when no lookup has an answer of the API's own: force ends it.
func (p policy) resolve(row Row, ev event) (Row, effects, decision) {
	lookedUp := false
	if row.State == Ambiguous {
		next, _ := p.foresee(row, ev.promotion, ev.now)
		lookedUp = next == Ask
	}
	switch {
	case row.State != Unknown && !lookedUp:
		return row, effects{}, decision{refused: "it is " + string(row.State) + ", not UNKNOWN"}
	case lookedUp && !ev.resolve.Force:
		return row, effects{}, decision{refused: "it is AMBIGUOUS, and the Money API is asked again; only force ends that"}
	}
	row.Epoch++
	to := Success
	row.TransactionKey, row.LastClass, row.LastError = ev.resolve.TransactionKey, "", ""
	if !ev.resolve.Paid {
		to = Failed
		row.MaybeCharged, row.FirstSentAt = false, time.Time{}
		row.LastClass, row.LastError = ClassResolved, ev.resolve.Why
	}
	row, eff := row.settled(to, ev.now)
	switch {
	case !lookedUp:
		eff.left, eff.dead = Unknown, "" // its letter was written when it became UNKNOWN
	case to == Failed:
		eff.dead = ClassResolved // the letter that is replayed when it is to be paid after all
	}
	return row, eff, decision{}
}
