package ledger

import "time"

// Next is what the caller of Accept, Begin or Settle does next.
type Next int

// The things to do next. The comment names the calls that answer it.
const (
	Enqueue     Next = iota + 1 // Accept: add it to the stream; NotEnqueued if it could not be; then ack
	Pay                         // Accept: begin it now
	Done                        // Accept: ack; the payout is settled
	Paused                      // Accept: ack; the promotion is paused and the feeder enqueues it on resume
	Conflict                    // Accept, Begin: ack; another request came first, a dead letter was written
	Send                        // Begin: call the API with the stored request, then Settle
	Ask                         // Begin: ask the API for the status of the charge, then Settle
	Ack                         // Begin, Settle: ack, nothing else to do
	Retry                       // Begin, Settle: publish a retry record, due in RetryIn, then ack
	Unannounced                 // Begin: ack; there is no such payout, a dead letter was written
)

// String returns the lower-case name.
func (n Next) String() string {
	names := [...]string{"none", "enqueue", "pay", "done", "paused", "conflict", "send", "ask", "ack", "retry", "unannounced"}
	if n < 0 || int(n) >= len(names) {
		return "invalid"
	}
	return names[n]
}

// policy is what the transitions need to know besides the row and the event.
type policy struct {
	maxAttempts int                              // sends a payout may have
	maxAsks     int                              // asks a payout may have
	maxReleased int                              // released calls that are counted before the payout is FAILED or looked up
	lease       time.Duration                    // of a begin
	ttl         time.Duration                    // how long after the key's first use a request may be sent without a lookup
	delay       func(failures int) time.Duration // back-off after the n-th failure, n from 1
	instance    string
}

type eventKind int

const (
	evAccept      eventKind = iota // a record came in for which the row was just made
	evAcceptAgain                  // a record came in for which there is a row
	evNotEnqueued                  // the stream was full, or the promotion paused
	evBegin                        // a hint came to a worker
	evSettle                       // a call ended
	evCancel                       // the promotion is cancelled, and the row is visited
	evFed                          // the feeder has added the row to the stream
	evLost                         // the stream was lost
	evReplay                       // a person wants a payout that was given up to be tried again
	evResolve                      // a person says what became of a payout that may have been charged
)

// event is everything that can happen to a row. Which fields count depends on kind.
type event struct {
	kind      eventKind
	now       time.Time
	promotion PromotionState // evAccept, evAcceptAgain, evBegin, evReplay, evResolve
	same      bool           // evAcceptAgain, evBegin: the request equals the stored one
	payNow    bool           // evAccept, evAcceptAgain
	result    Result         // evSettle
	version   int64          // evFed: Version of the row that was fed
	resolve   Resolution     // evResolve
}

// effects is what has to be written besides the row, in the same transaction.
type effects struct {
	attempt *Attempt // a line for the book of attempts
	settled bool     // the row was settled by this event: summary and outcome event
	left    State    // the final state that a person took the row out of: its summary counts one less
	dead    string   // class of a dead letter to write; empty: none
}

// decision is what the caller learns.
type decision struct {
	next    Next
	retryIn time.Duration
	stale   bool   // evSettle: the epoch is not the row's; nothing changed
	repeat  bool   // evSettle: this epoch was settled before; nothing changed
	why     string // evBegin, for logs: settled, leased, not_due, paused, cancelled, exhausted
	refused string // evReplay, evResolve: the reason; nothing changed
}

// apply is the transition function of the ledger: pure, total, and the only place where rules are. Every
// change of a row is a new version.
func (p policy) apply(row Row, ev event) (Row, effects, decision) {
	next, eff, d := p.transition(row, ev)
	if next != row {
		next.Version = row.Version + 1
	}
	return next, eff, d
}

func (p policy) transition(row Row, ev event) (Row, effects, decision) {
	switch ev.kind {
	case evAccept:
		return p.accept(row, ev)
	case evAcceptAgain:
		return p.acceptAgain(row, ev)
	case evBegin:
		return p.begin(row, ev)
	case evSettle:
		return p.settle(row, ev)
	case evCancel:
		return p.cancel(row, ev)
	case evReplay:
		return p.replay(row, ev)
	case evResolve:
		return p.resolve(row, ev)
	case evNotEnqueued, evLost:
		// Losing a hint is the one mistake that strands a payout; setting none too often only repeats one.
		if !row.State.Settled() && row.Hint == HintStream {
			row = row.hinted(HintNone, ev.now)
		}
	case evFed:
		if !row.State.Settled() && row.Version == ev.version {
			row = row.hinted(HintStream, ev.now)
		}
	}
	return row, effects{}, decision{}
}

func (r Row) hinted(h Hint, due time.Time) Row {
	r.Hint, r.HintDue = h, due
	r.Version++ // even when nothing else changes: the old hint is used up
	return r
}

func (p policy) accept(row Row, ev event) (Row, effects, decision) {
	row.State, row.AcceptedAt = Pending, ev.now
	switch {
	case ev.promotion == PromotionCancelled:
		row = row.hinted(HintNone, ev.now)
		row, eff := row.settled(Cancelled, ev.now)
		return row, eff, decision{next: Done}
	case ev.promotion == PromotionPaused:
		return row.hinted(HintNone, ev.now), effects{}, decision{next: Paused}
	case ev.payNow:
		return row.hinted(HintRetry, ev.now.Add(p.lease)), effects{}, decision{next: Pay}
	default:
		return row.hinted(HintStream, ev.now), effects{}, decision{next: Enqueue}
	}
}

func (p policy) acceptAgain(row Row, ev event) (Row, effects, decision) {
	switch {
	case !ev.same:
		return row, effects{dead: ClassConflict}, decision{next: Conflict}
	case row.State.Settled():
		return row, effects{}, decision{next: Done}
	case ev.promotion == PromotionCancelled && row.cancellable():
		row, eff := row.settled(Cancelled, ev.now)
		return row, eff, decision{next: Done}
	case ev.promotion == PromotionPaused:
		// The record may come again because its entry was never added.
		if row.Hint == HintStream {
			row = row.hinted(HintNone, ev.now)
		}
		return row, effects{}, decision{next: Paused}
	case ev.payNow:
		if row.Hint == HintNone {
			row = row.hinted(HintRetry, ev.now.Add(p.lease))
		}
		return row, effects{}, decision{next: Pay}
	default:
		if row.Hint == HintNone {
			row = row.hinted(HintStream, ev.now)
		}
		return row, effects{}, decision{next: Enqueue}
	}
}

// cancellable reports whether the row has certainly not charged and nobody is calling.
func (r Row) cancellable() bool {
	return (r.State == Pending || r.State == Errored) && !r.MaybeCharged
}

func (p policy) cancel(row Row, ev event) (Row, effects, decision) {
	if !row.cancellable() {
		return row, effects{}, decision{}
	}
	row, eff := row.settled(Cancelled, ev.now)
	return row, eff, decision{next: Done}
}

// settled moves the row to a final state. It is a fault of the caller to ask for FAILED or CANCELLED
// when a charge is possible; UNKNOWN is what that means.
func (r Row) settled(s State, now time.Time) (Row, effects) {
	if r.MaybeCharged && s != Success {
		s = Unknown
	}
	r.State, r.SettledAt = s, now
	r.LeaseUntil, r.NextAttemptAt, r.Asking = time.Time{}, time.Time{}, false
	eff := effects{settled: true}
	switch s {
	case Failed:
		eff.dead = ClassFailed
	case Unknown:
		eff.dead = ClassUnknown
	}
	return r, eff
}

func (p policy) begin(row Row, ev event) (Row, effects, decision) {
	now := ev.now
	switch {
	case !ev.same:
		return row, effects{dead: ClassConflict}, decision{next: Conflict, why: "conflict"}
	case row.State.Settled():
		return row, effects{}, decision{next: Ack, why: "settled"}
	case row.leased(now):
		row = row.hinted(HintRetry, row.LeaseUntil)
		return row, effects{}, decision{next: Retry, retryIn: row.LeaseUntil.Sub(now), why: "leased"}
	case ev.promotion == PromotionPaused:
		return row.hinted(HintNone, now), effects{}, decision{next: Ack, why: "paused"}
	}

	cancelled := ev.promotion == PromotionCancelled
	switch {
	case cancelled && row.cancellable():
		row, eff := row.settled(Cancelled, now)
		return row, eff, decision{next: Ack, why: "cancelled"}
	case row.NextAttemptAt.After(now):
		row = row.hinted(HintRetry, row.NextAttemptAt)
		return row, effects{}, decision{next: Retry, retryIn: row.NextAttemptAt.Sub(now), why: "not_due"}
	}

	var eff effects
	if row.State == Sending { // the lease ran out: whoever held it may have charged
		eff.attempt = &Attempt{Epoch: row.Epoch, Number: row.Attempts, Kind: row.callKind(), Instance: row.AttemptBy,
			StartedAt: row.AttemptStartedAt, EndedAt: now, Outcome: Interrupted, Class: ClassLeaseExpired}
		if !row.Asking { // a lookup charges nothing
			row.MaybeCharged, row.NoChargeSeen = true, false
		}
		row.Interruptions++
	}
	giveUp := func() (Row, effects, decision) {
		row.Epoch++ // a late answer must not match
		settled, final := row.settled(Failed, now)
		final.attempt = eff.attempt
		return settled, final, decision{next: Ack, why: "exhausted"}
	}
	if cancelled && !row.MaybeCharged { // it was a lookup
		row.Epoch++
		settled, final := row.settled(Cancelled, now)
		final.attempt = eff.attempt
		return settled, final, decision{next: Ack, why: "cancelled"}
	}
	tooOld := row.KeyAge(now) > p.ttl
	mustAsk := tooOld && !row.NoChargeSeen
	if row.MaybeCharged {
		mustAsk = row.Asking || cancelled || tooOld || p.sendsUsedUp(row)
	}
	switch {
	case !mustAsk && p.sendsUsedUp(row), mustAsk && row.Asks >= p.maxAsks:
		return giveUp()
	case mustAsk:
		row.Asks++
		return p.leaseTo(row, now, true), eff, decision{next: Ask}
	}
	row.Attempts++
	if row.FirstSentAt.IsZero() {
		row.FirstSentAt = now
	}
	if row.KeyFirstUsedAt.IsZero() {
		row.KeyFirstUsedAt = row.FirstSentAt
	}
	return p.leaseTo(row, now, false), eff, decision{next: Send}
}

// foresee returns what the next begin would answer, and the earliest time for it. It leaves a pause aside.
func (p policy) foresee(row Row, promotion PromotionState, now time.Time) (Next, time.Time) {
	at := now
	for _, t := range []time.Time{row.LeaseUntil, row.NextAttemptAt} {
		if t.After(at) {
			at = t
		}
	}
	if promotion == PromotionPaused {
		promotion = PromotionRunning
	}
	_, _, d := p.begin(row, event{kind: evBegin, now: at, promotion: promotion, same: true})
	return d.next, at
}

// sendsUsedUp reports whether nothing of the row may be sent any more.
func (p policy) sendsUsedUp(row Row) bool {
	return row.Attempts >= p.maxAttempts || row.Released >= p.maxReleased
}

// KeyAge returns how long ago the idempotency key may have been used first; 0 when it was not.
func (r Row) KeyAge(now time.Time) time.Duration {
	first := r.KeyFirstUsedAt
	// An earlier version did not note the first use. A late answer may show that a forgotten request has charged.
	if first.IsZero() || !r.FirstSentAt.IsZero() && r.FirstSentAt.Before(first) {
		first = r.FirstSentAt
	}
	if first.IsZero() {
		return 0
	}
	return now.Sub(first)
}

func (p policy) leaseTo(row Row, now time.Time, asking bool) Row {
	row.State, row.Asking = Sending, asking
	row.Epoch++
	row.LeaseUntil, row.NextAttemptAt = now.Add(p.lease), time.Time{}
	row.AttemptStartedAt, row.AttemptBy = now, p.instance
	return row.hinted(HintRetry, row.LeaseUntil)
}

func (r Row) callKind() CallKind {
	if r.Asking {
		return CallAsk
	}
	return CallSend
}

// lateKey comes before the transaction key in the line of an answer that came late.
const lateKey = "transaction key "

func (p policy) settle(row Row, ev event) (Row, effects, decision) {
	res, now := ev.result, ev.now
	line := &Attempt{Epoch: res.Epoch, Number: row.Attempts, Kind: row.callKind(), Instance: row.AttemptBy,
		StartedAt: row.AttemptStartedAt, EndedAt: now, Outcome: res.Outcome, Class: res.Class, Answer: res.Answer, Status: res.Status}
	switch {
	case res.Epoch != row.Epoch:
		// Whose attempt it was is in the line of that epoch; here only the answer counts.
		line.Late, line.Number, line.Kind, line.Instance, line.StartedAt = true, 0, CallSend, p.instance, time.Time{}
		if res.Outcome == Paid {
			line.Answer = lateKey + res.TransactionKey // the row may never learn it
		}
		return row, effects{attempt: line}, decision{next: Ack, stale: true}
	case row.State != Sending:
		d := decision{next: Ack, repeat: true}
		if !row.State.Settled() {
			d.next, d.retryIn = Retry, max(0, row.NextAttemptAt.Sub(now))
		}
		return row, effects{}, d
	}

	row.LeaseUntil = time.Time{}
	row.LastClass, row.LastError = res.Class, res.Answer
	finish := func(s State) (Row, effects, decision) {
		row, eff := row.settled(s, now)
		eff.attempt = line
		if eff.dead == ClassFailed && res.Class != "" {
			eff.dead = res.Class
		}
		return row, eff, decision{next: Ack}
	}
	if res.Outcome == Paid {
		row.TransactionKey, row.LastClass, row.LastError = res.TransactionKey, "", ""
		return finish(Success)
	}

	if res.Counted && res.Outcome.released() {
		row.Released++
	}
	if row.Asking {
		p.settleAsk(&row, res.Outcome)
	} else if rejected := p.settleSend(&row, res.Outcome); rejected && !row.MaybeCharged {
		return finish(Failed)
	}
	if p.exhausted(row) {
		return finish(Failed) // which is UNKNOWN when a charge is possible
	}

	row.State = Errored
	if row.MaybeCharged {
		row.State = Ambiguous
	}
	delay := time.Duration(0)
	if res.Outcome == Interrupted {
		row.Interruptions++
	} else {
		row.Failures++
		delay = max(p.delay(row.Failures), res.RetryAfter).Truncate(time.Microsecond) // as stored
	}
	row.NextAttemptAt = now.Add(delay)
	row = row.hinted(HintRetry, row.NextAttemptAt)
	return row, effects{attempt: line}, decision{next: Retry, retryIn: delay}
}

// exhausted reports whether neither a send nor a lookup is left.
func (p policy) exhausted(row Row) bool {
	if !row.MaybeCharged && !row.Asking {
		return p.sendsUsedUp(row)
	}
	return row.Asking && (row.Asks >= p.maxAsks || row.Released >= 2*p.maxReleased)
}

// settleSend books a send that did not end paid, and reports whether the API refused it for good.
func (p policy) settleSend(row *Row, o Outcome) (rejected bool) {
	if o.released() {
		row.Attempts--
	}
	looked := row.NoChargeSeen
	row.NoChargeSeen = false
	switch o {
	case NotSent, Interrupted:
		row.NoChargeSeen = looked // the API has not heard of the key since
		if row.KeyFirstUsedAt.Equal(row.AttemptStartedAt) {
			row.KeyFirstUsedAt = time.Time{} // this call would have been the first use
		}
	case NotCharged, OwnFault:
		if looked && !row.MaybeCharged {
			row.Asks-- // the next send needs another lookup, and no attempt was spent
		}
	case TryAgain:
	case Rejected:
		// The refusal speaks for this request only; an earlier one may have charged: look it up.
		rejected = true
	default:
		row.MaybeCharged = true
	}
	if !row.MaybeCharged {
		row.FirstSentAt = time.Time{}
		return rejected
	}
	row.Asking = rejected || p.sendsUsedUp(*row)
	return rejected
}

// settleAsk books a lookup that did not end paid. What may have been charged stays so.
func (p policy) settleAsk(row *Row, o Outcome) {
	switch {
	case o.released():
		row.Asks--
	case o == NoCharge:
		// Not a proof: a request may be under way. With sends left the next begin sends again, unless
		// it is too late or cancelled; without, only looking up is left.
		row.NoChargeSeen = true
		row.Asking = row.MaybeCharged && p.sendsUsedUp(*row)
	}
}
