package rules

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testPolicy() Policy {
	return Policy{Repeat: ByKey, MaxAttempts: 3, MaxLookups: 3, MaxReleased: 4, Lease: 8 * time.Second, KeyTTL: time.Hour, Instance: "a",
		Delay: func(n int) time.Duration { return time.Duration(n) * time.Second }}
}

// shapes are rows of each state and flag that the ledger can store.
func shapes() map[string]Row {
	base := Row{AcceptedAt: t0.Add(-2 * time.Minute), Queue: QueueRetry, QueueDue: t0, Version: 7}
	make := func(s State, change func(*Row)) Row {
		r := base
		r.State = s
		if change != nil {
			change(&r)
		}
		return r
	}
	sending := func(lease time.Duration, maybe, lookingUp bool, attempts int) Row {
		return make(Sending, func(r *Row) {
			r.Epoch, r.Attempts, r.MaybeDone, r.LookingUp = 4, attempts, maybe, lookingUp
			r.LeaseUntil, r.FirstSentAt, r.AttemptStartedAt, r.AttemptBy = t0.Add(lease), t0.Add(-time.Minute), t0.Add(lease-8*time.Second), "b"
			r.KeyFirstUsedAt = r.FirstSentAt
			if lookingUp {
				r.Lookups = 1
			}
		})
	}
	waiting := func(s State, in time.Duration, maybe, lookingUp bool) Row {
		return make(s, func(r *Row) {
			r.Epoch, r.Attempts, r.MaybeDone, r.LookingUp, r.NextAttemptAt = 3, 1, maybe, lookingUp, t0.Add(in)
			r.KeyFirstUsedAt = t0.Add(-time.Minute)
			if maybe {
				r.FirstSentAt = r.KeyFirstUsedAt
			}
		})
	}
	settled := func(s State) Row {
		return make(s, func(r *Row) {
			r.Epoch, r.Attempts, r.SettledAt, r.KeyFirstUsedAt = 5, 1, t0.Add(-time.Second), t0.Add(-time.Minute)
		})
	}
	with := func(r Row, change func(*Row)) Row { change(&r); return r }
	old := t0.Add(-2 * time.Hour)
	return map[string]Row{
		"error old":                with(waiting(Errored, -1, false, false), func(r *Row) { r.KeyFirstUsedAt = old }),
		"error old, no charge":     with(waiting(Errored, -1, false, false), func(r *Row) { r.KeyFirstUsedAt, r.NotDoneSeen = old, true }),
		"error old, looked up":     with(waiting(Errored, -1, false, false), func(r *Row) { r.KeyFirstUsedAt, r.Lookups = old, 3 }),
		"error released":           with(waiting(Errored, -1, false, false), func(r *Row) { r.Released = 4 }),
		"sending released":         with(sending(time.Second, false, false, 1), func(r *Row) { r.Released = 3 }),
		"sending released maybe":   with(sending(time.Second, true, false, 1), func(r *Row) { r.Released = 3 }),
		"sending lookup released":  with(sending(time.Second, true, true, 1), func(r *Row) { r.Released = 7 }),
		"sending certain lookup":   with(sending(time.Second, false, true, 1), func(r *Row) { r.FirstSentAt, r.KeyFirstUsedAt = time.Time{}, old }),
		"expired certain lookup":   with(sending(-time.Second, false, true, 1), func(r *Row) { r.FirstSentAt, r.KeyFirstUsedAt = time.Time{}, old }),
		"ambiguous released":       with(waiting(Ambiguous, -1, true, false), func(r *Row) { r.Released = 4 }),
		"ambiguous, key long used": with(waiting(Ambiguous, -1, true, false), func(r *Row) { r.KeyFirstUsedAt = old }),
		"pending":                  make(Pending, func(r *Row) { r.Queue = QueueStream }),
		"pending in no queue":      make(Pending, func(r *Row) { r.Queue = QueueNone }),
		"sending":                  sending(time.Second, false, false, 1),
		"sending maybe":            sending(time.Second, true, false, 2),
		"sending last":             sending(time.Second, false, false, 3),
		"sending last maybe":       sending(time.Second, true, false, 3),
		"sending lookup":           sending(time.Second, true, true, 1),
		"sending lookup last":      sending(time.Second, true, true, 3),
		"expired":                  sending(-time.Second, false, false, 1),
		"expired last":             sending(-time.Second, false, false, 3),
		"expired lookup":           sending(-time.Second, true, true, 1),
		"error due":                waiting(Errored, -time.Second, false, false),
		"error not due":            waiting(Errored, time.Second, false, false),
		"ambiguous due":            waiting(Ambiguous, -time.Second, true, false),
		"ambiguous not due":        waiting(Ambiguous, time.Second, true, false),
		"ambiguous must look up":   waiting(Ambiguous, -time.Second, true, true),
		"ambiguous old":            func() Row { r := waiting(Ambiguous, -1, true, false); r.FirstSentAt = t0.Add(-2 * time.Hour); return r }(),
		"ambiguous old looked up": func() Row {
			r := waiting(Ambiguous, -1, true, false)
			r.FirstSentAt = t0.Add(-2 * time.Hour)
			r.Lookups = 3
			return r
		}(),
		"ambiguous used up": func() Row { r := waiting(Ambiguous, -1, true, false); r.Attempts = 3; return r }(),
		"error used up":     func() Row { r := waiting(Errored, -1, false, false); r.Attempts = 3; return r }(),
		"success":           settled(Success),
		"failed":            settled(Failed),
		"unknown": func() Row {
			r := settled(Unknown)
			r.MaybeDone, r.FirstSentAt = true, t0.Add(-time.Minute)
			return r
		}(),
		"cancelled": settled(Cancelled),
	}
}

// Each shape of a row, in each state of its group.
func TestBeginTable(t *testing.T) {
	t.Parallel()
	// running / paused / cancelled, each: next, state afterwards
	table := map[string]string{
		"pending":                  "send SENDING / ack PENDING / ack CANCELLED",
		"pending in no queue":      "send SENDING / ack PENDING / ack CANCELLED",
		"sending":                  "retry SENDING / retry SENDING / retry SENDING",
		"sending maybe":            "retry SENDING / retry SENDING / retry SENDING",
		"sending last":             "retry SENDING / retry SENDING / retry SENDING",
		"sending last maybe":       "retry SENDING / retry SENDING / retry SENDING",
		"sending lookup":           "retry SENDING / retry SENDING / retry SENDING",
		"sending lookup last":      "retry SENDING / retry SENDING / retry SENDING",
		"expired":                  "send SENDING / ack SENDING / lookup SENDING",
		"expired last":             "lookup SENDING / ack SENDING / lookup SENDING",
		"expired lookup":           "lookup SENDING / ack SENDING / lookup SENDING",
		"error due":                "send SENDING / ack ERROR / ack CANCELLED",
		"error not due":            "retry ERROR / ack ERROR / ack CANCELLED",
		"ambiguous due":            "send SENDING / ack AMBIGUOUS / lookup SENDING",
		"ambiguous not due":        "retry AMBIGUOUS / ack AMBIGUOUS / retry AMBIGUOUS",
		"ambiguous must look up":   "lookup SENDING / ack AMBIGUOUS / lookup SENDING",
		"ambiguous old":            "lookup SENDING / ack AMBIGUOUS / lookup SENDING",
		"ambiguous old looked up":  "ack UNKNOWN / ack AMBIGUOUS / ack UNKNOWN",
		"ambiguous used up":        "lookup SENDING / ack AMBIGUOUS / lookup SENDING",
		"error old":                "lookup SENDING / ack ERROR / ack CANCELLED",
		"error old, no charge":     "send SENDING / ack ERROR / ack CANCELLED",
		"error old, looked up":     "ack FAILED / ack ERROR / ack CANCELLED",
		"error released":           "ack FAILED / ack ERROR / ack CANCELLED",
		"sending released":         "retry SENDING / retry SENDING / retry SENDING",
		"sending released maybe":   "retry SENDING / retry SENDING / retry SENDING",
		"sending lookup released":  "retry SENDING / retry SENDING / retry SENDING",
		"sending certain lookup":   "retry SENDING / retry SENDING / retry SENDING",
		"expired certain lookup":   "lookup SENDING / ack SENDING / ack CANCELLED",
		"ambiguous released":       "lookup SENDING / ack AMBIGUOUS / lookup SENDING",
		"ambiguous, key long used": "lookup SENDING / ack AMBIGUOUS / lookup SENDING",
		"error used up":            "ack FAILED / ack ERROR / ack CANCELLED",
		"success":                  "ack SUCCESS / ack SUCCESS / ack SUCCESS",
		"failed":                   "ack FAILED / ack FAILED / ack FAILED",
		"unknown":                  "ack UNKNOWN / ack UNKNOWN / ack UNKNOWN",
		"cancelled":                "ack CANCELLED / ack CANCELLED / ack CANCELLED",
	}
	rows := shapes()
	require.Len(t, table, len(rows), "every shape has its line")
	for name, row := range rows {
		got := ""
		for i, group := range []GroupState{GroupRunning, GroupPaused, GroupCancelled} {
			next, eff, d := testPolicy().Apply(row, Event{Kind: EventBegin, Now: t0, Group: group, SameRequest: true})
			if i > 0 {
				got += " / "
			}
			got += fmt.Sprint(d.Next, " ", next.State)
			checkStep(t, row, next, eff, d)
			if group == GroupPaused && d.Next == Ack && !row.State.Settled() {
				require.Equal(t, QueueNone, next.Queue, "%s: a paused effect waits for the feeder", name)
				require.Greater(t, next.Version, row.Version, "%s: its entry is used up, even when it was in no queue", name)
			}
			if d.Next == Retry {
				require.Equal(t, QueueRetry, next.Queue, name)
				require.Equal(t, next.QueueDue, t0.Add(d.RetryIn), "%s: the row has the due time of the retry", name)
			}
			if d.Next == Send || d.Next == Lookup {
				require.Equal(t, row.Epoch+1, next.Epoch, name)
				require.Equal(t, t0.Add(8*time.Second), next.LeaseUntil, name)
				require.Equal(t, next.LeaseUntil, next.QueueDue, "%s: a lease counts as a retry", name)
			}
			if row.State == Sending && !row.LeaseUntil.After(t0) && group != GroupPaused {
				require.NotNil(t, eff.Attempt, "%s: the attempt taken over has its line", name)
				require.Equal(t, row.Epoch, eff.Attempt.Epoch)
				require.Equal(t, Interrupted, eff.Attempt.Outcome)
				require.Equal(t, !row.LookingUp || row.MaybeDone, next.MaybeDone, "%s: a lookup charges nothing", name)
				require.Greater(t, next.Epoch, row.Epoch, "%s: a late answer must be stale", name)
			}
		}
		require.Equal(t, table[name], got, name)

		next, eff, d := testPolicy().Apply(row, Event{Kind: EventBegin, Now: t0, Group: GroupRunning, SameRequest: false})
		require.Equal(t, Conflict, d.Next, name)
		require.Equal(t, ClassConflict, eff.DeadLetterClass, name)
		require.Equal(t, row, next, "%s: a conflict changes nothing", name)
	}
}

// Each outcome for each shape of a row.
func TestSettleTable(t *testing.T) {
	t.Parallel()
	outcomes := []Outcome{Done, Throttled, TryAgain, Unclear, Rejected, Misconfigured, NotDone, Interrupted, NotSent, Unrecognized}
	// State afterwards, in the order of outcomes; + marks a row that must be looked up next.
	table := map[string]string{
		"sending":                 "SUCCESS ERROR ERROR AMBIGUOUS FAILED ERROR AMBIGUOUS ERROR ERROR AMBIGUOUS",
		"sending maybe":           "SUCCESS AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS+ AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS",
		"sending last":            "SUCCESS ERROR FAILED AMBIGUOUS+ FAILED ERROR AMBIGUOUS+ ERROR ERROR AMBIGUOUS",
		"sending last maybe":      "SUCCESS AMBIGUOUS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS AMBIGUOUS+ AMBIGUOUS AMBIGUOUS AMBIGUOUS",
		"sending lookup":          "SUCCESS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+",
		"sending lookup last":     "SUCCESS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+",
		"sending released":        "SUCCESS ERROR ERROR AMBIGUOUS FAILED ERROR AMBIGUOUS ERROR ERROR AMBIGUOUS",
		"sending released maybe":  "SUCCESS AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS+ AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS",
		"sending lookup released": "SUCCESS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+",
		"sending certain lookup":  "SUCCESS ERROR+ ERROR+ ERROR+ ERROR+ ERROR+ ERROR ERROR+ ERROR+ ERROR+",
		"expired":                 "SUCCESS ERROR ERROR AMBIGUOUS FAILED ERROR AMBIGUOUS ERROR ERROR AMBIGUOUS",
		"expired last":            "SUCCESS ERROR FAILED AMBIGUOUS+ FAILED ERROR AMBIGUOUS+ ERROR ERROR AMBIGUOUS",
		"expired lookup":          "SUCCESS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+",
		"expired certain lookup":  "SUCCESS ERROR+ ERROR+ ERROR+ ERROR+ ERROR+ ERROR ERROR+ ERROR+ ERROR+",
	}
	p := testPolicy()
	for name, row := range shapes() {
		got := ""
		for i, o := range outcomes {
			res := CallResult{Epoch: row.Epoch, Outcome: o, Receipt: "tx", Class: "c", Answer: "no", Status: 500}
			next, eff, d := p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: res})
			checkStep(t, row, next, eff, d)
			if row.State != Sending {
				require.Equal(t, row, next, "%s: only a call can be settled", name)
				require.True(t, d.Repeated)
				require.Equal(t, Writes{}, eff)
				continue
			}
			if i > 0 {
				got += " "
			}
			got += string(next.State)
			if next.LookingUp && !next.State.Settled() {
				got += "+"
			}
			require.NotNil(t, eff.Attempt, name)
			require.Equal(t, row.Epoch, next.Epoch, "%s: settling keeps the epoch, so that it may be repeated", name)
			if !next.State.Settled() {
				require.Equal(t, Retry, d.Next, name)
				require.Equal(t, QueueRetry, next.Queue, name)
				require.Equal(t, next.NextAttemptAt, next.QueueDue, name)
				wait := time.Duration(0)
				if o != Interrupted {
					wait = time.Duration(row.Failures+1) * time.Second
				}
				require.Equal(t, wait, d.RetryIn, name)
				require.Equal(t, t0.Add(wait), next.NextAttemptAt, name)
				res.RetryAfter = time.Minute
				_, _, later := p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: res})
				if o != Interrupted {
					require.Equal(t, time.Minute, later.RetryIn, name)
				}
				res.RetryAfter = 0
				require.Equal(t, next.MaybeDone, !next.FirstSentAt.IsZero(), "%s: %s", name, o)
			}
			if o.released() {
				require.Equal(t, row.Attempts+row.Lookups-1, next.Attempts+next.Lookups, "%s: %s is released", name, o)
			}
			require.Equal(t, row.Released, next.Released, "not counted")

			again, eff, d2 := p.Apply(next, Event{Kind: EventSettle, Now: t0, Result: res})
			require.Equal(t, next, again, "%s: %s twice", name, o)
			require.Equal(t, Writes{}, eff, "%s: %s twice", name, o)
			require.Equal(t, d.Next, d2.Next, "%s: %s twice", name, o)

			for _, epoch := range []int64{row.Epoch - 1, row.Epoch + 1} {
				res.Epoch = epoch
				same, eff, d := p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: res})
				require.Equal(t, row, same, "a stale answer changes nothing")
				require.True(t, d.Stale)
				require.True(t, eff.Attempt.Late, "a stale answer is evidence")
			}
		}
		if row.State == Sending {
			require.Equal(t, table[name], got, name)
		}
	}
}

// A second record, and the other events, for each shape.
func TestAcceptTable(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	for name, row := range shapes() {
		for _, group := range []GroupState{GroupRunning, GroupPaused, GroupCancelled} {
			for _, to := range []Event{{}, {CallNow: true}, {StreamFull: true}, {CallNow: true, StreamFull: true}} {
				ev := Event{Kind: EventAcceptAgain, Now: t0, Group: group, CallNow: to.CallNow, StreamFull: to.StreamFull, SameRequest: true}
				next, eff, d := p.Apply(row, ev)
				checkStep(t, row, next, eff, d)
				switch {
				case row.State.Settled():
					require.Equal(t, Settled, d.Next, name)
				case group == GroupCancelled && (row.State == Pending || row.State == Errored):
					require.Equal(t, Settled, d.Next, name)
					require.Equal(t, Cancelled, next.State, name)
				case group == GroupPaused:
					require.Equal(t, Paused, d.Next, name)
					require.NotEqual(t, QueueStream, next.Queue, name)
				case to.CallNow:
					require.Equal(t, CallNow, d.Next, name)
					require.NotEqual(t, QueueNone, next.Queue, name)
				case to.StreamFull:
					require.Equal(t, Overflow, d.Next, name)
					require.NotEqual(t, QueueStream, next.Queue, name)
				default:
					require.Equal(t, Enqueue, d.Next, name)
					require.NotEqual(t, QueueNone, next.Queue, name)
				}
				ev.SameRequest = false
				next, eff, d = p.Apply(row, ev)
				require.Equal(t, Conflict, d.Next)
				require.Equal(t, ClassConflict, eff.DeadLetterClass)
				require.Equal(t, row, next, "the first request wins")
			}
		}
		for _, kind := range []EventKind{EventNotEnqueued, EventStreamLost} {
			next, eff, d := p.Apply(row, Event{Kind: kind, Now: t0})
			checkStep(t, row, next, eff, d)
			if row.Queue == QueueStream && !row.State.Settled() {
				require.Equal(t, QueueNone, next.Queue)
			} else {
				require.Equal(t, row, next)
			}
		}
		next, _, _ := p.Apply(row, Event{Kind: EventEnqueued, Now: t0, Version: row.Version})
		if row.State.Settled() {
			require.Equal(t, row, next)
		} else {
			require.Equal(t, QueueStream, next.Queue)
			require.Greater(t, next.Version, row.Version)
		}
		next, _, _ = p.Apply(row, Event{Kind: EventEnqueued, Now: t0, Version: row.Version - 1})
		require.Equal(t, row, next, "the row has changed since it was enqueued")

		next, eff, _ := p.Apply(row, Event{Kind: EventCancel, Now: t0})
		require.Equal(t, row.cancellable(), eff.Settled, name)
		if row.cancellable() {
			require.Equal(t, Cancelled, next.State)
		} else {
			require.Equal(t, row, next)
		}
	}
	fresh := Row{}
	for want, ev := range map[string]Event{
		"enqueue PENDING stream": {Group: GroupRunning},
		"call_now PENDING retry": {Group: GroupRunning, CallNow: true, StreamFull: true},
		"overflow PENDING none":  {Group: GroupRunning, StreamFull: true},
		"paused PENDING none":    {Group: GroupPaused, CallNow: true},
		"settled CANCELLED none": {Group: GroupCancelled},
	} {
		ev.Kind, ev.Now = EventAccept, t0
		next, _, d := p.Apply(fresh, ev)
		require.Equal(t, want, fmt.Sprint(d.Next, " ", next.State, " ", next.Queue))
		require.Equal(t, t0, next.AcceptedAt)
	}
}

// checkStep checks what holds for each step of each effect.
func checkStep(t require.TestingT, was, is Row, eff Writes, d Decision) {
	checkStepOf(t, testPolicy(), was, is, eff, d)
}

func checkStepOf(t require.TestingT, p Policy, was, is Row, eff Writes, d Decision) {
	switch {
	case eff.LeftState != "": // an operator
		require.Equal(t, was.State, eff.LeftState)
		require.Contains(t, []State{Failed, Unknown}, was.State)
		require.Greater(t, is.Epoch, was.Epoch, "an answer that still comes in must be stale")
	case was.State.Settled():
		require.Equal(t, was, is, "settled stays settled")
		require.False(t, eff.Settled)
	}
	if is != was {
		require.Greater(t, is.Version, was.Version, "every change is a new version")
	}
	require.GreaterOrEqual(t, is.Epoch, was.Epoch)
	require.Equal(t, eff.Settled, is.State.Settled() && (!was.State.Settled() || eff.LeftState != ""))
	require.Equal(t, is.State.Settled(), !is.SettledAt.IsZero())
	denied := is.State == Failed && (eff.LeftState == Unknown || was.State == Ambiguous && eff.DeadLetterClass == ClassResolved) // by an operator
	// A far side without keys is asked when no request is under way any more.
	proved := p.Repeat == ByLookup && was.State == Sending && was.LookingUp && eff.Attempt != nil && eff.Attempt.Outcome == NotDone
	if was.MaybeDone && !denied && !proved {
		require.True(t, is.MaybeDone, "a possible charge is never cleared")
		require.False(t, is.FirstSentAt.After(was.FirstSentAt), "nor when it was first possible")
		require.True(t, len(p.Lost) > 0 || is.FirstSentAt.Equal(was.FirstSentAt), "only a loss makes that older")
	}
	if is.KeyFirstUsedAt != was.KeyFirstUsedAt && !was.KeyFirstUsedAt.IsZero() {
		require.True(t, is.KeyFirstUsedAt.IsZero() && was.State == Sending && was.KeyFirstUsedAt.Equal(was.AttemptStartedAt),
			"the first use of a key is only cleared by the call that would have been it")
	}
	if is.State == Sending && !is.LookingUp {
		require.False(t, is.KeyFirstUsedAt.IsZero(), "a key that is sent is used")
	}
	if is.MaybeDone && !is.State.Settled() {
		require.False(t, is.FirstSentAt.IsZero(), "the age of a possible charge is known")
	}
	require.True(t, is.State != Ambiguous || is.MaybeDone, "an AMBIGUOUS effect is found by its possible charge")
	if is.MaybeDone {
		require.NotContains(t, []State{Failed, Cancelled, Errored, Pending}, is.State)
	}
	if was.State == Sending && is.State != Sending && d.Next == Ack && eff.Attempt == nil {
		require.Fail(t, "a call ended without a line")
	}
	require.Equal(t, is.State == Sending, !is.LeaseUntil.IsZero())
	if !is.State.Settled() && is.Queue == QueueNone && was.Queue != QueueNone {
		require.Contains(t, []Next{0, Ack, Paused, Overflow}, d.Next)
	}
	require.False(t, eff.Settled && eff.LeftState == "" && (is.State == Failed || is.State == Unknown) && eff.DeadLetterClass == "", "a failed effect has a dead letter")
}

// An interrupted effect that the feeder enqueues gets no retry record, also if the settle is
// repeated. Other results ignore the flag.
func TestAnInterruptedEffectIsLeftToTheFeeder(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	for name, row := range shapes() {
		if row.State != Sending {
			continue
		}
		res := CallResult{Epoch: row.Epoch, Outcome: Interrupted, Feed: true}
		next, eff, d := p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: res})
		if next.State.Settled() { // its attempts were used up before
			continue
		}
		checkStep(t, row, next, eff, d)
		require.Equal(t, Ack, d.Next, name)
		require.Equal(t, QueueNone, next.Queue, name)
		require.Equal(t, t0, next.NextAttemptAt, name)
		again, _, d := p.Apply(next, Event{Kind: EventSettle, Now: t0, Result: res})
		require.Equal(t, Decision{Next: Ack, Repeated: true}, d, name)
		require.Equal(t, next, again, name)

		res.Outcome = NotSent
		next, _, d = p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: res})
		if !next.State.Settled() {
			require.Equal(t, Retry, d.Next, name)
			require.Equal(t, QueueRetry, next.Queue, name)
		}
	}
}
