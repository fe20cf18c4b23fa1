package rules

import "time"

// Resolution is an operator's statement about an effect that may have happened.
type Resolution struct {
	Done     bool
	Receipt  string // required when done
	Who, Why string // for the audit: the operator and the evidence; both required
	// Force resolves although the ledger has a reason against it. Either a late answer states that
	// the effect happened, and the operator denies it, or it is AMBIGUOUS and will be looked up
	// again.
	Force bool
	// Epoch is that of the effect when the operator decided. If it has another one now, it was called, replayed or resolved since,
	// and the resolution is refused. Zero: any.
	Epoch int64
	// Evidence is what the far side said then, for the audit. May be empty.
	Evidence string
	// Route is for the dead letter of an AMBIGUOUS effect that was not done. May be empty.
	Route string
}

// Validate returns an error that wraps ErrInvalid when a required field is missing.
func (r *Resolution) Validate() error {
	switch {
	case r.Who == "" || r.Why == "":
		return Invalid("a resolution needs who and why")
	case r.Done && r.Receipt == "":
		return Invalid("a resolution as done needs the receipt")
	case !r.Done && r.Receipt != "":
		return Invalid("a resolution as not done has no receipt")
	}
	return nil
}

// Refusal is the reason for which a replay or a resolution changes nothing. The zero value means
// that it was not refused.
type Refusal int

// The reasons.
const (
	RefusedDone           Refusal = iota + 1 // replay: it has happened
	RefusedCancelled                         // replay: it was cancelled with its group
	RefusedUnsettled                         // replay: it is still being worked on
	RefusedGroupCancelled                    // replay: its group is cancelled, so nothing is sent
	RefusedNoCall                            // replay: it may have happened, and no call can find that out
	RefusedNotUnknown                        // resolve: it is not UNKNOWN
	RefusedLookup                            // resolve: it is AMBIGUOUS and will be looked up; only force ends that
	RefusedChanged                           // resolve: it has another epoch than the operator has seen
)

// replay restores all attempts of a FAILED or UNKNOWN effect. That it may have happened and the age of the
// key stay, so the next begin sends or looks up by the usual rules. The new epoch makes an answer
// that is still under way stale.
func (p Policy) replay(row Row, ev Event) (Row, Writes, Decision) {
	switch {
	case row.State == Success:
		return row, Writes{}, Decision{Refused: RefusedDone}
	case row.State == Cancelled:
		return row, Writes{}, Decision{Refused: RefusedCancelled}
	case !row.State.Settled():
		return row, Writes{}, Decision{Refused: RefusedUnsettled}
	case ev.Group == GroupCancelled:
		return row, Writes{}, Decision{Refused: RefusedGroupCancelled}
	}
	was, eff := row, Writes{LeftState: row.State}
	lost, again := p.lost(row)
	again = again && p.lookups() > 0 // it may have been replayed and done in the lost time
	row.State = Pending
	if row.MaybeDone {
		row.State = Ambiguous
	}
	row.Epoch++
	row.Attempts, row.Lookups, row.Released, row.Failures, row.LookingUp, row.NotDoneSeen = 0, 0, 0, 0, false, false
	row.SettledAt, row.NextAttemptAt = time.Time{}, time.Time{}
	if again {
		row = p.perhapsDone(row, lost)
	}
	if len(p.Lost) > 0 {
		row.NextAttemptAt = ev.Now // so this operator knows of the loss
	}
	if next, _ := p.NextBegin(row, ev.Group, ev.Now); next == Ack {
		return was, Writes{}, Decision{Refused: RefusedNoCall}
	}
	return row.queuedIn(QueueNone, ev.Now), eff, Decision{}
}

// resolve applies an operator's statement, the only event that may deny that an effect happened. It ends
// an UNKNOWN effect. With force it also ends an AMBIGUOUS one that is only looked up: while the far
// side does not answer, such lookups go on until the key is old (refusedLate). The new epoch
// makes an answer that is still under way stale.
func (p Policy) resolve(row Row, ev Event) (Row, Writes, Decision) {
	lookupOnly := false
	if row.State == Ambiguous {
		next, _ := p.NextBegin(row, ev.Group, ev.Now)
		lookupOnly = next == Lookup
	}
	switch {
	case ev.Resolution.Epoch != 0 && ev.Resolution.Epoch != row.Epoch:
		return row, Writes{}, Decision{Refused: RefusedChanged}
	case row.State != Unknown && !lookupOnly:
		return row, Writes{}, Decision{Refused: RefusedNotUnknown}
	case lookupOnly && !ev.Resolution.Force:
		return row, Writes{}, Decision{Refused: RefusedLookup}
	}
	row.Epoch++
	to := Success
	row.Receipt, row.LastClass, row.LastError = ev.Resolution.Receipt, "", ""
	if !ev.Resolution.Done {
		to = Failed
		row.MaybeDone, row.FirstSentAt = false, time.Time{}
		row.LastClass, row.LastError = ClassResolved, ev.Resolution.Why
	}
	row, eff := row.settled(to, ev.Now)
	switch {
	case !lookupOnly:
		eff.LeftState, eff.DeadLetterClass = Unknown, "" // it has a dead letter already
	case to == Failed:
		eff.DeadLetterClass = ClassResolved // can be replayed, to do it after all
	}
	return row, eff, Decision{}
}

func (p Policy) cancel(row Row, ev Event) (Row, Writes, Decision) {
	if !p.cancellable(row) {
		return row, Writes{}, Decision{}
	}
	row, eff := row.settled(Cancelled, ev.Now)
	return row, eff, Decision{Next: Settled}
}
