package rules

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// life is one effect with the transition function.
type life struct {
	p     Policy
	row   Row
	now   time.Time
	calls map[Next]int // begins, by what they answered
}

func newLife(p Policy) *life {
	l := &life{p: p, now: t0, calls: map[Next]int{}}
	l.row, _, _ = p.Apply(Row{}, Event{Kind: EventAccept, Now: l.now, Group: GroupRunning})
	return l
}

// begin begins the effect and returns the next call, or false when it is settled.
func (l *life) begin() (Next, bool) {
	row, _, d := l.p.Apply(l.row, Event{Kind: EventBegin, Now: l.now, Group: GroupRunning, SameRequest: true})
	if l.row = row; row.State.Settled() {
		return 0, false
	}
	l.calls[d.Next]++
	return d.Next, true
}

// settle ends the call.
func (l *life) settle(r CallResult) (eff Writes) {
	r.Epoch = l.row.Epoch
	l.row, eff, _ = l.p.Apply(l.row, Event{Kind: EventSettle, Now: l.now, Result: r})
	return eff
}

// A effect whose calls are released while others are answered ends after max_released of them. It
// is FAILED when it was certainly not charged, and looked up otherwise. It is UNKNOWN when the
// lookups are released as often.
func TestReleasedCallsAreCounted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		outcome Outcome
		counted bool
		want    string // sends, lookups, state
	}{
		{Throttled, true, "4 sends, 0 lookups, FAILED"},
		{Misconfigured, true, "4 sends, 0 lookups, FAILED"},
		{Unrecognized, true, "4 sends, 4 lookups, UNKNOWN"},
		{Throttled, false, "100 sends, 0 lookups, ERROR"},
		{Misconfigured, false, "100 sends, 0 lookups, ERROR"},
		{NotSent, false, "100 sends, 0 lookups, ERROR"},
		{Unrecognized, false, "100 sends, 0 lookups, AMBIGUOUS"},
		{Rejected, true, "1 sends, 0 lookups, FAILED"},
	} {
		l := newLife(testPolicy())
		for range 100 {
			if _, open := l.begin(); !open {
				break
			}
			l.now = l.now.Add(time.Second)
			eff := l.settle(CallResult{Outcome: c.outcome, Counted: c.counted, Class: "why"})
			if l.row.State == Failed {
				require.Equal(t, "why", eff.DeadLetterClass, "the dead letter names what was answered")
			}
			l.now = l.row.NextAttemptAt
			if l.row.Released == 0 {
				l.row.Failures = 0 // else the hundred calls take longer than the key's time
			}
		}
		require.Equal(t, c.want, fmt.Sprintf("%d sends, %d lookups, %s", l.calls[Send], l.calls[Lookup], l.row.State), "%s %t", c.outcome, c.counted)
	}
}

// The last answer is one of the API: a call that was not sent has none, and does not hide the one
// before. Without any answer its reason is shown.
func TestTheLastAnswerStays(t *testing.T) {
	t.Parallel()
	l := newLife(testPolicy())
	call := func(outcome Outcome, class, answer string) string {
		l.begin()
		l.settle(CallResult{Outcome: outcome, Class: class, Answer: answer})
		l.now = l.row.NextAttemptAt
		return l.row.LastClass + ": " + l.row.LastError
	}
	require.Equal(t, "not_sent: breaker open", call(NotSent, "not_sent", "breaker open"))
	require.Equal(t, "ambiguous: 500 internal", call(Unclear, "ambiguous", "500 internal"))
	require.Equal(t, "ambiguous: 500 internal", call(NotSent, "not_sent", "breaker open"))
	require.Equal(t, "ambiguous: 500 internal", call(Interrupted, "not_sent", "no call slot"))
	require.Equal(t, "throttled: 429", call(Throttled, "throttled", "429"))
}

// A lone effect whose lookups are always refused goes to an operator, who finds the reason: after the
// time of its key, and after a number of failed calls. Within that time it is looked up again and
// again, because an outage may end. The bound is that of a possible charge alone.
func TestRefusedLookupsEnd(t *testing.T) {
	t.Parallel()
	for outcome, ends := range map[Outcome]bool{Misconfigured: true, Unrecognized: true, Throttled: true, NotSent: false, Interrupted: false} {
		l := newLife(testPolicy())
		l.begin()
		l.settle(CallResult{Outcome: Unclear})
		began, spent, last, eff := l.now, l.p.MaxAttempts-1, time.Duration(0), Writes{}
		for range 500 {
			l.now = l.row.NextAttemptAt
			next, open := l.begin()
			require.True(t, open, "an answer ends it, no begin")
			if last = l.now.Sub(began); next == Send {
				eff, spent = l.settle(CallResult{Outcome: Unclear}), spent-1
			} else if eff = l.settle(CallResult{Outcome: outcome, Class: "misconfigured", Answer: "401 Unauthorized"}); eff.Settled {
				break
			}
		}
		require.Zero(t, spent)
		require.Equal(t, ends, eff.Settled, outcome)
		if !ends {
			require.Equal(t, Ambiguous, l.row.State)
			continue
		}
		require.Equal(t, Unknown, l.row.State)
		require.Equal(t, ClassUnknown, eff.DeadLetterClass)
		require.Greater(t, last, l.p.KeyTTL)
		require.Less(t, l.calls[Lookup], 100)
		require.Contains(t, l.row.LastError, "its lookups are refused")
		require.Contains(t, l.row.LastError, "401 Unauthorized")

		l.row, _, _ = l.p.Apply(l.row, Event{Kind: EventReplay, Now: l.now, Group: GroupRunning})
		for range 2*l.p.MaxReleased - 1 { // as many again, because the operator believes in an answer
			l.begin()
			require.False(t, l.settle(CallResult{Outcome: outcome}).Settled)
			l.now = l.row.NextAttemptAt
		}
		l.begin()
		require.True(t, l.settle(CallResult{Outcome: outcome}).Settled)
	}
	// Calls that were not sent, and those before the key was old, count for nothing.
	l := newLife(testPolicy())
	l.begin()
	l.settle(CallResult{Outcome: Unclear})
	for range 100 {
		l.now = l.row.NextAttemptAt
		l.begin()
		l.settle(CallResult{Outcome: NotSent})
	}
	require.Greater(t, l.row.KeyAge(l.now), l.p.KeyTTL)
	l.now = l.row.NextAttemptAt
	l.begin()
	require.False(t, l.settle(CallResult{Outcome: Misconfigured}).Settled)

	p := testPolicy()
	row := shapes()["sending certain lookup"]
	row.Released = 2*p.MaxReleased - 1
	row, _, _ = p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: CallResult{Epoch: row.Epoch, Outcome: Misconfigured}})
	require.Equal(t, Errored, row.State, "an expired credential makes no effect FAILED")
}

// A possible charge is looked up as often as allowed before the effect is UNKNOWN.
func TestUnknownOnlyAfterLookups(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send, lookup Outcome // "" is a worker that is gone
		want         State
		lookups      int
	}{
		"no answers":                {Unclear, Unclear, Unknown, 3},
		"workers that are gone":     {"", "", Unknown, 3},
		"the last answer was lost":  {"", Done, Success, 1},
		"it was charged":            {Unclear, Done, Success, 1},
		"the API has no charge":     {Unclear, NotDone, Unknown, 3},
		"the API refuses lookups":   {Unclear, Rejected, Unknown, 3},
		"rejected, perhaps charged": {"", NotDone, Unknown, 3},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(testPolicy())
			for range 20 {
				next, open := l.begin()
				if !open {
					break
				}
				outcome := c.send
				if next == Lookup {
					outcome = c.lookup
				}
				if l.now = l.now.Add(time.Minute); outcome == "" {
					continue
				}
				l.settle(CallResult{Outcome: outcome, Receipt: "tx"})
				l.now = l.now.Add(time.Minute)
			}
			require.Equal(t, c.want, l.row.State)
			require.Equal(t, map[Next]int{Send: 3, Lookup: c.lookups}, l.calls)
		})
	}
}

// A lookup precedes each send of an old key. If the send spends no attempt, the lookup is not spent
// either.
func TestReleasedSendsOfAnOldKeyEndNothing(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	for _, released := range []Outcome{NotSent, Interrupted, Throttled, Misconfigured} {
		row, now := shapes()["error old"], t0
		call := func(o Outcome) {
			now = now.Add(time.Hour)
			var d Decision
			row, _, d = p.Apply(row, Event{Kind: EventBegin, Now: now, Group: GroupRunning, SameRequest: true})
			if d.Next == Lookup {
				row, _, _ = p.Apply(row, Event{Kind: EventSettle, Now: now, Result: CallResult{Epoch: row.Epoch, Outcome: NotDone}})
				require.Equal(t, Errored, row.State, released)
				row, _, d = p.Apply(row, Event{Kind: EventBegin, Now: now.Add(time.Minute), Group: GroupRunning, SameRequest: true})
			}
			require.Equal(t, Send, d.Next, released)
			row, _, _ = p.Apply(row, Event{Kind: EventSettle, Now: now, Result: CallResult{Epoch: row.Epoch, Outcome: o, Receipt: "tx"}})
		}
		for range 2 * p.MaxLookups {
			call(released)
			require.Equal(t, Errored, row.State, released)
			require.Equal(t, 1, row.Attempts, released)
			require.LessOrEqual(t, row.Lookups, 1, released)
		}
		call(TryAgain)
		require.False(t, row.NotDoneSeen, "the API has heard of the key since")
		call(Done)
		require.Equal(t, Success, row.State)
	}
	row := shapes()["expired"]
	row.NotDoneSeen = true
	row, _, _ = p.Apply(row, Event{Kind: EventBegin, Now: t0, Group: GroupRunning, SameRequest: true})
	require.False(t, row.NotDoneSeen, "it may have been sent")
}
