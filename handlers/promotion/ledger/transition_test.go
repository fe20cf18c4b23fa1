package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testPolicy() policy {
	return policy{maxAttempts: 3, maxAsks: 3, maxReleased: 4, lease: 8 * time.Second, ttl: time.Hour, instance: "a",
		delay: func(n int) time.Duration { return time.Duration(n) * time.Second }}
}

// shapes are rows of every state and flag, as the ledger can leave them.
func shapes() map[string]Row {
	base := Row{ID: 1, Key: key(1, 2), AcceptedAt: t0.Add(-2 * time.Minute), Hint: HintRetry, HintDue: t0, Version: 7}
	make := func(s State, change func(*Row)) Row {
		r := base
		r.State = s
		if change != nil {
			change(&r)
		}
		return r
	}
	sending := func(lease time.Duration, maybe, asking bool, attempts int) Row {
		return make(Sending, func(r *Row) {
			r.Epoch, r.Attempts, r.MaybeCharged, r.Asking = 4, attempts, maybe, asking
			r.LeaseUntil, r.FirstSentAt, r.AttemptStartedAt, r.AttemptBy = t0.Add(lease), t0.Add(-time.Minute), t0.Add(lease-8*time.Second), "b"
			r.KeyFirstUsedAt = r.FirstSentAt
			if asking {
				r.Asks = 1
			}
		})
	}
	waiting := func(s State, in time.Duration, maybe, asking bool) Row {
		return make(s, func(r *Row) {
			r.Epoch, r.Attempts, r.MaybeCharged, r.Asking, r.NextAttemptAt = 3, 1, maybe, asking, t0.Add(in)
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
		"error old, no charge":     with(waiting(Errored, -1, false, false), func(r *Row) { r.KeyFirstUsedAt, r.NoChargeSeen = old, true }),
		"error old, asked":         with(waiting(Errored, -1, false, false), func(r *Row) { r.KeyFirstUsedAt, r.Asks = old, 3 }),
		"error released":           with(waiting(Errored, -1, false, false), func(r *Row) { r.Released = 4 }),
		"sending released":         with(sending(time.Second, false, false, 1), func(r *Row) { r.Released = 3 }),
		"sending released maybe":   with(sending(time.Second, true, false, 1), func(r *Row) { r.Released = 3 }),
		"sending ask released":     with(sending(time.Second, true, true, 1), func(r *Row) { r.Released = 7 }),
		"sending certain ask":      with(sending(time.Second, false, true, 1), func(r *Row) { r.FirstSentAt, r.KeyFirstUsedAt = time.Time{}, old }),
		"expired certain ask":      with(sending(-time.Second, false, true, 1), func(r *Row) { r.FirstSentAt, r.KeyFirstUsedAt = time.Time{}, old }),
		"ambiguous released":       with(waiting(Ambiguous, -1, true, false), func(r *Row) { r.Released = 4 }),
		"ambiguous, key long used": with(waiting(Ambiguous, -1, true, false), func(r *Row) { r.KeyFirstUsedAt = old }),
		"pending":                  make(Pending, func(r *Row) { r.Hint = HintStream }),
		"pending unhinted":         make(Pending, func(r *Row) { r.Hint = HintNone }),
		"sending":                  sending(time.Second, false, false, 1),
		"sending maybe":            sending(time.Second, true, false, 2),
		"sending last":             sending(time.Second, false, false, 3),
		"sending last maybe":       sending(time.Second, true, false, 3),
		"sending ask":              sending(time.Second, true, true, 1),
		"sending ask last":         sending(time.Second, true, true, 3),
		"expired":                  sending(-time.Second, false, false, 1),
		"expired last":             sending(-time.Second, false, false, 3),
		"expired ask":              sending(-time.Second, true, true, 1),
		"error due":                waiting(Errored, -time.Second, false, false),
		"error not due":            waiting(Errored, time.Second, false, false),
		"ambiguous due":            waiting(Ambiguous, -time.Second, true, false),
		"ambiguous not due":        waiting(Ambiguous, time.Second, true, false),
		"ambiguous must ask":       waiting(Ambiguous, -time.Second, true, true),
		"ambiguous old":            func() Row { r := waiting(Ambiguous, -1, true, false); r.FirstSentAt = t0.Add(-2 * time.Hour); return r }(),
		"ambiguous old asked": func() Row {
			r := waiting(Ambiguous, -1, true, false)
			r.FirstSentAt = t0.Add(-2 * time.Hour)
			r.Asks = 3
			return r
		}(),
		"ambiguous used up": func() Row { r := waiting(Ambiguous, -1, true, false); r.Attempts = 3; return r }(),
		"error used up":     func() Row { r := waiting(Errored, -1, false, false); r.Attempts = 3; return r }(),
		"success":           settled(Success),
		"failed":            settled(Failed),
		"unknown": func() Row {
			r := settled(Unknown)
			r.MaybeCharged, r.FirstSentAt = true, t0.Add(-time.Minute)
			return r
		}(),
		"cancelled": settled(Cancelled),
	}
}

// TestBeginTable: every shape of a row, in every state of its promotion.
func TestBeginTable(t *testing.T) {
	t.Parallel()
	// running / paused / cancelled, each: next, state afterwards
	table := map[string]string{
		"pending":                  "send SENDING / ack PENDING / ack CANCELLED",
		"pending unhinted":         "send SENDING / ack PENDING / ack CANCELLED",
		"sending":                  "retry SENDING / retry SENDING / retry SENDING",
		"sending maybe":            "retry SENDING / retry SENDING / retry SENDING",
		"sending last":             "retry SENDING / retry SENDING / retry SENDING",
		"sending last maybe":       "retry SENDING / retry SENDING / retry SENDING",
		"sending ask":              "retry SENDING / retry SENDING / retry SENDING",
		"sending ask last":         "retry SENDING / retry SENDING / retry SENDING",
		"expired":                  "send SENDING / ack SENDING / ask SENDING",
		"expired last":             "ask SENDING / ack SENDING / ask SENDING",
		"expired ask":              "ask SENDING / ack SENDING / ask SENDING",
		"error due":                "send SENDING / ack ERROR / ack CANCELLED",
		"error not due":            "retry ERROR / ack ERROR / ack CANCELLED",
		"ambiguous due":            "send SENDING / ack AMBIGUOUS / ask SENDING",
		"ambiguous not due":        "retry AMBIGUOUS / ack AMBIGUOUS / retry AMBIGUOUS",
		"ambiguous must ask":       "ask SENDING / ack AMBIGUOUS / ask SENDING",
		"ambiguous old":            "ask SENDING / ack AMBIGUOUS / ask SENDING",
		"ambiguous old asked":      "ack UNKNOWN / ack AMBIGUOUS / ack UNKNOWN",
		"ambiguous used up":        "ask SENDING / ack AMBIGUOUS / ask SENDING",
		"error old":                "ask SENDING / ack ERROR / ack CANCELLED",
		"error old, no charge":     "send SENDING / ack ERROR / ack CANCELLED",
		"error old, asked":         "ack FAILED / ack ERROR / ack CANCELLED",
		"error released":           "ack FAILED / ack ERROR / ack CANCELLED",
		"sending released":         "retry SENDING / retry SENDING / retry SENDING",
		"sending released maybe":   "retry SENDING / retry SENDING / retry SENDING",
		"sending ask released":     "retry SENDING / retry SENDING / retry SENDING",
		"sending certain ask":      "retry SENDING / retry SENDING / retry SENDING",
		"expired certain ask":      "ask SENDING / ack SENDING / ack CANCELLED",
		"ambiguous released":       "ask SENDING / ack AMBIGUOUS / ask SENDING",
		"ambiguous, key long used": "ask SENDING / ack AMBIGUOUS / ask SENDING",
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
		for i, promotion := range []PromotionState{PromotionRunning, PromotionPaused, PromotionCancelled} {
			next, eff, d := testPolicy().apply(row, event{kind: evBegin, now: t0, promotion: promotion, same: true})
			if i > 0 {
				got += " / "
			}
			got += fmt.Sprint(d.next, " ", next.State)
			checkStep(t, row, next, eff, d)
			if promotion == PromotionPaused && d.next == Ack && !row.State.Settled() {
				require.Equal(t, HintNone, next.Hint, "%s: a paused payout waits for the feeder", name)
				require.Greater(t, next.Version, row.Version, "%s: its entry is used up, even when it had no hint at this very moment", name)
			}
			if d.next == Retry {
				require.Equal(t, HintRetry, next.Hint, name)
				require.Equal(t, next.HintDue, t0.Add(d.retryIn), "%s: the hint says when the retry is due", name)
			}
			if d.next == Send || d.next == Ask {
				require.Equal(t, row.Epoch+1, next.Epoch, name)
				require.Equal(t, t0.Add(8*time.Second), next.LeaseUntil, name)
				require.Equal(t, next.LeaseUntil, next.HintDue, "%s: a lease counts as a retry", name)
			}
			if row.State == Sending && !row.leased(t0) && promotion != PromotionPaused {
				require.NotNil(t, eff.attempt, "%s: the attempt taken over has its line", name)
				require.Equal(t, row.Epoch, eff.attempt.Epoch)
				require.Equal(t, Interrupted, eff.attempt.Outcome)
				require.Equal(t, !row.Asking || row.MaybeCharged, next.MaybeCharged, "%s: a lookup charges nothing", name)
				require.Greater(t, next.Epoch, row.Epoch, "%s: a late answer must be stale", name)
			}
		}
		require.Equal(t, table[name], got, name)

		next, eff, d := testPolicy().apply(row, event{kind: evBegin, now: t0, promotion: PromotionRunning, same: false})
		require.Equal(t, Conflict, d.next, name)
		require.Equal(t, ClassConflict, eff.dead, name)
		require.Equal(t, row, next, "%s: a conflict changes nothing", name)
	}
}

// TestSettleTable: every outcome for every row that is being called for.
func TestSettleTable(t *testing.T) {
	t.Parallel()
	outcomes := []Outcome{Paid, NotCharged, TryAgain, PerhapsCharged, Rejected, OwnFault, NoCharge, Interrupted, NotSent, Unrecognized}
	// State afterwards, in the order of outcomes; a + marks a begin that must ask next.
	table := map[string]string{
		"sending":                "SUCCESS ERROR ERROR AMBIGUOUS FAILED ERROR AMBIGUOUS ERROR ERROR AMBIGUOUS",
		"sending maybe":          "SUCCESS AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS+ AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS",
		"sending last":           "SUCCESS ERROR FAILED AMBIGUOUS+ FAILED ERROR AMBIGUOUS+ ERROR ERROR AMBIGUOUS",
		"sending last maybe":     "SUCCESS AMBIGUOUS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS AMBIGUOUS+ AMBIGUOUS AMBIGUOUS AMBIGUOUS",
		"sending ask":            "SUCCESS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+",
		"sending ask last":       "SUCCESS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+",
		"sending released":       "SUCCESS ERROR ERROR AMBIGUOUS FAILED ERROR AMBIGUOUS ERROR ERROR AMBIGUOUS",
		"sending released maybe": "SUCCESS AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS+ AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS AMBIGUOUS",
		"sending ask released":   "SUCCESS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+",
		"sending certain ask":    "SUCCESS ERROR+ ERROR+ ERROR+ ERROR+ ERROR+ ERROR ERROR+ ERROR+ ERROR+",
		"expired":                "SUCCESS ERROR ERROR AMBIGUOUS FAILED ERROR AMBIGUOUS ERROR ERROR AMBIGUOUS",
		"expired last":           "SUCCESS ERROR FAILED AMBIGUOUS+ FAILED ERROR AMBIGUOUS+ ERROR ERROR AMBIGUOUS",
		"expired ask":            "SUCCESS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS AMBIGUOUS+ AMBIGUOUS+ AMBIGUOUS+",
		"expired certain ask":    "SUCCESS ERROR+ ERROR+ ERROR+ ERROR+ ERROR+ ERROR ERROR+ ERROR+ ERROR+",
	}
	p := testPolicy()
	for name, row := range shapes() {
		got := ""
		for i, o := range outcomes {
			res := Result{Key: row.Key, Epoch: row.Epoch, Outcome: o, TransactionKey: "tx", Class: "c", Answer: "no", Status: 500}
			next, eff, d := p.apply(row, event{kind: evSettle, now: t0, result: res})
			checkStep(t, row, next, eff, d)
			if row.State != Sending {
				require.Equal(t, row, next, "%s: only a call can be settled", name)
				require.True(t, d.repeat)
				require.Equal(t, effects{}, eff)
				continue
			}
			if i > 0 {
				got += " "
			}
			got += string(next.State)
			if next.Asking && !next.State.Settled() {
				got += "+"
			}
			require.NotNil(t, eff.attempt, name)
			require.Equal(t, row.Epoch, next.Epoch, "%s: settling keeps the epoch, so that it may be repeated", name)
			if !next.State.Settled() {
				require.Equal(t, Retry, d.next, name)
				require.Equal(t, HintRetry, next.Hint, name)
				require.Equal(t, next.NextAttemptAt, next.HintDue, name)
				wait := time.Duration(0)
				if o != Interrupted {
					wait = time.Duration(row.Failures+1) * time.Second
				}
				require.Equal(t, wait, d.retryIn, name)
				require.Equal(t, t0.Add(wait), next.NextAttemptAt, name)
				res.RetryAfter = time.Minute
				_, _, later := p.apply(row, event{kind: evSettle, now: t0, result: res})
				if o != Interrupted {
					require.Equal(t, time.Minute, later.retryIn, name)
				}
				res.RetryAfter = 0
				require.Equal(t, next.MaybeCharged, !next.FirstSentAt.IsZero(), "%s: %s", name, o)
			}
			if o.released() {
				require.Equal(t, row.Attempts+row.Asks-1, next.Attempts+next.Asks, "%s: %s is released", name, o)
			}
			require.Equal(t, row.Released, next.Released, "not counted")

			again, eff, d2 := p.apply(next, event{kind: evSettle, now: t0, result: res})
			require.Equal(t, next, again, "%s: %s twice", name, o)
			require.Equal(t, effects{}, eff, "%s: %s twice", name, o)
			require.Equal(t, d.next, d2.next, "%s: %s twice", name, o)

			for _, epoch := range []int64{row.Epoch - 1, row.Epoch + 1} {
				res.Epoch = epoch
				same, eff, d := p.apply(row, event{kind: evSettle, now: t0, result: res})
				require.Equal(t, row, same, "a stale answer changes nothing")
				require.True(t, d.stale)
				require.True(t, eff.attempt.Late, "a stale answer is evidence")
			}
		}
		if row.State == Sending {
			require.Equal(t, table[name], got, name)
		}
	}
}

// TestAcceptTable: a second record, and the other events, for every shape.
func TestAcceptTable(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	for name, row := range shapes() {
		for _, promotion := range []PromotionState{PromotionRunning, PromotionPaused, PromotionCancelled} {
			for _, payNow := range []bool{false, true} {
				ev := event{kind: evAcceptAgain, now: t0, promotion: promotion, payNow: payNow, same: true}
				next, eff, d := p.apply(row, ev)
				checkStep(t, row, next, eff, d)
				switch {
				case row.State.Settled():
					require.Equal(t, Done, d.next, name)
				case promotion == PromotionCancelled && (row.State == Pending || row.State == Errored):
					require.Equal(t, Done, d.next, name)
					require.Equal(t, Cancelled, next.State, name)
				case promotion == PromotionPaused:
					require.Equal(t, Paused, d.next, name)
					require.NotEqual(t, HintStream, next.Hint, name)
				case payNow:
					require.Equal(t, Pay, d.next, name)
					require.NotEqual(t, HintNone, next.Hint, name)
				default:
					require.Equal(t, Enqueue, d.next, name)
					require.NotEqual(t, HintNone, next.Hint, name)
				}
				ev.same = false
				next, eff, d = p.apply(row, ev)
				require.Equal(t, Conflict, d.next)
				require.Equal(t, ClassConflict, eff.dead)
				require.Equal(t, row, next, "the first request wins")
			}
		}
		for _, kind := range []eventKind{evNotEnqueued, evLost} {
			next, eff, d := p.apply(row, event{kind: kind, now: t0})
			checkStep(t, row, next, eff, d)
			if row.Hint == HintStream && !row.State.Settled() {
				require.Equal(t, HintNone, next.Hint)
			} else {
				require.Equal(t, row, next)
			}
		}
		next, _, _ := p.apply(row, event{kind: evFed, now: t0, version: row.Version})
		if row.State.Settled() {
			require.Equal(t, row, next)
		} else {
			require.Equal(t, HintStream, next.Hint)
			require.Greater(t, next.Version, row.Version)
		}
		next, _, _ = p.apply(row, event{kind: evFed, now: t0, version: row.Version - 1})
		require.Equal(t, row, next, "somebody has changed the row since it was fed")

		next, eff, _ := p.apply(row, event{kind: evCancel, now: t0})
		require.Equal(t, row.cancellable(), eff.settled, name)
		if row.cancellable() {
			require.Equal(t, Cancelled, next.State)
		} else {
			require.Equal(t, row, next)
		}
	}
	fresh := Row{Key: key(1, 2)}
	for want, ev := range map[string]event{
		"enqueue PENDING stream": {promotion: PromotionRunning},
		"pay PENDING retry":      {promotion: PromotionRunning, payNow: true},
		"paused PENDING none":    {promotion: PromotionPaused, payNow: true},
		"done CANCELLED none":    {promotion: PromotionCancelled},
	} {
		ev.kind, ev.now = evAccept, t0
		next, _, d := p.apply(fresh, ev)
		require.Equal(t, want, fmt.Sprint(d.next, " ", next.State, " ", next.Hint))
		require.Equal(t, t0, next.AcceptedAt)
	}
}

// checkStep holds for every step of every payout.
func checkStep(t require.TestingT, was, is Row, eff effects, d decision) {
	switch {
	case eff.left != "": // only a person's word
		require.Equal(t, was.State, eff.left)
		require.Contains(t, []State{Failed, Unknown}, was.State)
		require.Greater(t, is.Epoch, was.Epoch, "an answer that still comes in must be stale")
	case was.State.Settled():
		require.Equal(t, was, is, "settled stays settled")
		require.False(t, eff.settled)
	}
	if is != was {
		require.Greater(t, is.Version, was.Version, "every change is a new version")
	}
	require.GreaterOrEqual(t, is.Epoch, was.Epoch)
	require.Equal(t, eff.settled, is.State.Settled() && (!was.State.Settled() || eff.left != ""))
	require.Equal(t, is.State.Settled(), !is.SettledAt.IsZero())
	denied := is.State == Failed && (eff.left == Unknown || was.State == Ambiguous && eff.dead == ClassResolved) // by a person
	if was.MaybeCharged && !denied {
		require.True(t, is.MaybeCharged, "a possible charge is never forgotten")
		require.Equal(t, was.FirstSentAt, is.FirstSentAt, "nor when it was first possible")
	}
	if is.KeyFirstUsedAt != was.KeyFirstUsedAt && !was.KeyFirstUsedAt.IsZero() {
		require.True(t, is.KeyFirstUsedAt.IsZero() && was.State == Sending && was.KeyFirstUsedAt.Equal(was.AttemptStartedAt),
			"the first use of a key is only forgotten by the call that would have been it")
	}
	if is.State == Sending && !is.Asking {
		require.False(t, is.KeyFirstUsedAt.IsZero(), "a key that is sent is used")
	}
	if is.MaybeCharged && !is.State.Settled() {
		require.False(t, is.FirstSentAt.IsZero(), "the age of a possible charge is known")
	}
	if is.MaybeCharged {
		require.NotContains(t, []State{Failed, Cancelled, Errored, Pending}, is.State)
	}
	if was.State == Sending && is.State != Sending && d.next == Ack && eff.attempt == nil {
		require.Fail(t, "a call ended without a line")
	}
	require.Equal(t, is.State == Sending, !is.LeaseUntil.IsZero())
	if !is.State.Settled() && is.Hint == HintNone && was.Hint != HintNone {
		require.Contains(t, []Next{0, Ack, Paused}, d.next)
	}
	require.False(t, eff.settled && eff.left == "" && (is.State == Failed || is.State == Unknown) && eff.dead == "", "giving up leaves a dead letter")
}
