package rules

import "time"

// Resolution is an operator's statement about a payout that may have been charged.
type Resolution struct {
	Paid           bool
	TransactionKey string // required when paid
	Who, Why       string // for the audit: the operator and the evidence; both required
	// Force resolves although the ledger has a reason against it. Either the payout is unpaid and a
	// late answer states a charge, or it is AMBIGUOUS and will be looked up again.
	Force bool
	// Route is for the dead letter of an AMBIGUOUS payout that was not paid. May be empty.
	Route string
}

// Validate returns an error that wraps ErrInvalid when a required field is missing.
func (r *Resolution) Validate(k Key) error {
	switch {
	case r.Who == "" || r.Why == "":
		return Invalid("payout %s: a resolution needs who and why", k)
	case r.Paid && r.TransactionKey == "":
		return Invalid("payout %s: paid needs the transaction key", k)
	case !r.Paid && r.TransactionKey != "":
		return Invalid("payout %s: unpaid has no transaction key", k)
	}
	return nil
}

// replay restores all attempts of a FAILED or UNKNOWN payout. A possible charge and the age of the
// key stay, so the next begin sends or looks up by the usual rules. The new epoch makes an answer
// that is still under way stale.
func (p Policy) replay(row Row, ev Event) (Row, Effects, Decision) {
	switch {
	case row.State == Success:
		return row, Effects{}, Decision{Refused: "it is paid, transaction key " + row.TransactionKey}
	case row.State == Cancelled:
		return row, Effects{}, Decision{Refused: "it was cancelled with its promotion"}
	case !row.State.Settled():
		return row, Effects{}, Decision{Refused: "it is " + string(row.State) + ": it is being paid"}
	case ev.Promotion == PromotionCancelled:
		return row, Effects{}, Decision{Refused: "its promotion is cancelled"}
	}
	was, eff := row, Effects{LeftState: row.State}
	row.State = Pending
	if row.MaybeCharged {
		row.State = Ambiguous
	}
	row.Epoch++
	row.Attempts, row.Lookups, row.Released, row.Failures, row.LookingUp, row.NoChargeSeen = 0, 0, 0, 0, false, false
	row.SettledAt, row.NextAttemptAt = time.Time{}, time.Time{}
	if next, _ := p.NextBegin(row, ev.Promotion, ev.Now); next == Ack {
		return was, Effects{}, Decision{Refused: "it may have been charged, and no call can find that out: look at the far side and resolve it"}
	}
	return row.queuedIn(QueueNone, ev.Now), eff, Decision{}
}

// resolve applies an operator's statement, the only event that may deny a possible charge. It ends
// an UNKNOWN payout. With force it also ends an AMBIGUOUS one that is only looked up: while the API
// itself does not answer, such lookups go on until the key is old (refusedLate). The new epoch
// makes an answer that is still under way stale.
func (p Policy) resolve(row Row, ev Event) (Row, Effects, Decision) {
	lookupOnly := false
	if row.State == Ambiguous {
		next, _ := p.NextBegin(row, ev.Promotion, ev.Now)
		lookupOnly = next == Lookup
	}
	switch {
	case row.State != Unknown && !lookupOnly:
		return row, Effects{}, Decision{Refused: "it is " + string(row.State) + ", not UNKNOWN"}
	case lookupOnly && !ev.Resolution.Force:
		return row, Effects{}, Decision{Refused: "it is AMBIGUOUS, and will be looked up again; only force ends that"}
	}
	row.Epoch++
	to := Success
	row.TransactionKey, row.LastClass, row.LastError = ev.Resolution.TransactionKey, "", ""
	if !ev.Resolution.Paid {
		to = Failed
		row.MaybeCharged, row.FirstSentAt = false, time.Time{}
		row.LastClass, row.LastError = ClassResolved, ev.Resolution.Why
	}
	row, eff := row.settled(to, ev.Now)
	switch {
	case !lookupOnly:
		eff.LeftState, eff.DeadLetterClass = Unknown, "" // it has a dead letter already
	case to == Failed:
		eff.DeadLetterClass = ClassResolved // can be replayed, to pay it after all
	}
	return row, eff, Decision{}
}

func (p Policy) cancel(row Row, ev Event) (Row, Effects, Decision) {
	if !row.cancellable() {
		return row, Effects{}, Decision{}
	}
	row, eff := row.settled(Cancelled, ev.Now)
	return row, eff, Decision{Next: Done}
}
