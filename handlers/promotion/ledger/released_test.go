package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// life is that of one payout, by the transition function alone.
type life struct {
	p     policy
	row   Row
	now   time.Time
	calls map[Next]int // begins, by what they answered
}

func newLife(p policy) *life {
	l := &life{p: p, now: t0, calls: map[Next]int{}}
	l.row, _, _ = p.apply(Row{ID: 1, Key: key(1, 2)}, event{kind: evAccept, now: l.now, promotion: PromotionRunning})
	return l
}

// begin begins the payout and returns what is called, or false when it is settled.
func (l *life) begin() (Next, bool) {
	row, _, d := l.p.apply(l.row, event{kind: evBegin, now: l.now, promotion: PromotionRunning, same: true})
	if l.row = row; row.State.Settled() {
		return 0, false
	}
	l.calls[d.next]++
	return d.next, true
}

// settle ends the call.
func (l *life) settle(r Result) (eff effects) {
	r.Epoch = l.row.Epoch
	l.row, eff, _ = l.p.apply(l.row, event{kind: evSettle, now: l.now, result: r})
	return eff
}

// TestReleasedCallsAreCounted: a payout whose calls spend no attempt, while others are answered, ends after max_released of them:
// FAILED when nothing was charged for certain, looked up otherwise, and UNKNOWN when lookups are released as often again.
func TestReleasedCallsAreCounted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		outcome Outcome
		counted bool
		want    string // sends, lookups, state
	}{
		{NotCharged, true, "4 sends, 0 lookups, FAILED"},
		{OwnFault, true, "4 sends, 0 lookups, FAILED"},
		{Unrecognized, true, "4 sends, 4 lookups, UNKNOWN"},
		{NotCharged, false, "100 sends, 0 lookups, ERROR"},
		{OwnFault, false, "100 sends, 0 lookups, ERROR"},
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
			eff := l.settle(Result{Outcome: c.outcome, Counted: c.counted, Class: "why"})
			if l.row.State == Failed {
				require.Equal(t, "why", eff.dead, "the dead letter names what was answered")
			}
			l.now = l.row.NextAttemptAt
			if l.row.Released == 0 {
				l.row.Failures = 0 // else the hundred calls take longer than the key's time
			}
		}
		require.Equal(t, c.want, fmt.Sprintf("%d sends, %d lookups, %s", l.calls[Send], l.calls[Ask], l.row.State), "%s %t", c.outcome, c.counted)
	}
}

// TestUnknownOnlyAfterLookups: what may have been charged is looked up as often as it may be before a person is asked.
func TestUnknownOnlyAfterLookups(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send, lookup Outcome // "" is a worker that is gone
		want         State
		lookups      int
	}{
		"no answers":                {PerhapsCharged, PerhapsCharged, Unknown, 3},
		"workers that are gone":     {"", "", Unknown, 3},
		"the last answer was lost":  {"", Paid, Success, 1},
		"it was charged":            {PerhapsCharged, Paid, Success, 1},
		"the API knows no charge":   {PerhapsCharged, NoCharge, Unknown, 3},
		"the API refuses lookups":   {PerhapsCharged, Rejected, Unknown, 3},
		"rejected, perhaps charged": {"", NoCharge, Unknown, 3},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(testPolicy())
			for range 20 {
				next, open := l.begin()
				if !open {
					break
				}
				outcome := c.send
				if next == Ask {
					outcome = c.lookup
				}
				if l.now = l.now.Add(time.Minute); outcome == "" {
					continue
				}
				l.settle(Result{Outcome: outcome, TransactionKey: "tx"})
				l.now = l.now.Add(time.Minute)
			}
			require.Equal(t, c.want, l.row.State)
			require.Equal(t, map[Next]int{Send: 3, Ask: c.lookups}, l.calls)
		})
	}
}

// TestTheKeysAgeCountsFromItsFirstUse: a request that was refused has used the key all the same. Later than the ttl a lookup comes
// before any send; only a call of which no byte left the process has not used the key.
func TestTheKeysAgeCountsFromItsFirstUse(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t, func(c *Config, _ *Options) { c.IdempotencyTTL = 24 * time.Hour })
		target := int64(0)
		call := func(r Record, want Next, o Outcome) State {
			t.Helper()
			b := mustBegin(t, l, r)
			require.Equal(t, want, b.Next)
			s := mustSettle(t, l, Result{Key: r.Key, Epoch: b.Epoch, Outcome: o, Class: "c", TransactionKey: "tx"})
			h.advance(s.RetryIn)
			return s.State
		}
		for _, refused := range []Outcome{NotCharged, TryAgain, OwnFault, Unrecognized} {
			target++
			r := record(1, target)
			mustAccept(t, l, r)
			call(r, Send, refused)
			h.advance(23 * time.Hour)
			require.Equal(t, Ambiguous, call(r, Send, PerhapsCharged), "charged, and the answer is lost")
			h.advance(2 * time.Hour)
			require.Equal(t, Ambiguous, call(r, Ask, NoCharge), "the API has forgotten the key")
			h.advance(time.Hour)
			call(r, Ask, NoCharge)
		}
		for _, unsent := range []Outcome{NotSent, Interrupted} {
			target++
			r := record(1, target)
			mustAccept(t, l, r)
			call(r, Send, unsent)
			require.Zero(t, mustExplain(t, l, r.Key).KeyFirstUsedAt)
			h.advance(25 * time.Hour)
			require.Equal(t, Success, call(r, Send, Paid))
		}
		target++
		r := record(1, target)
		mustAccept(t, l, r)
		call(r, Send, NotCharged)
		first := mustExplain(t, l, r.Key).KeyFirstUsedAt
		call(r, Send, NotSent)
		require.Equal(t, first, mustExplain(t, l, r.Key).KeyFirstUsedAt, "an earlier call has used it")
		h.advance(25 * time.Hour)
		require.Equal(t, Errored, call(r, Ask, NoCharge), "certainly not charged, so it may be sent after a lookup")
		require.True(t, mustExplain(t, l, r.Key).NoChargeSeen)
		require.Equal(t, Errored, call(r, Send, NotSent))
		require.Equal(t, Errored, call(r, Send, NotCharged), "the lookup before still holds")
		require.Equal(t, Errored, call(r, Ask, NoCharge), "before each send that reaches the API")
		require.Equal(t, Success, call(r, Send, Paid))
	})
}

// TestReleasedSendsOfAnOldKeyEndNothing: a lookup comes before each send of an old key. When the send spends no attempt, the
// lookup must not be used up either.
func TestReleasedSendsOfAnOldKeyEndNothing(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	for _, released := range []Outcome{NotSent, Interrupted, NotCharged, OwnFault} {
		row, now := shapes()["error old"], t0
		call := func(o Outcome) {
			now = now.Add(time.Hour)
			var d decision
			row, _, d = p.apply(row, event{kind: evBegin, now: now, promotion: PromotionRunning, same: true})
			if d.next == Ask {
				row, _, _ = p.apply(row, event{kind: evSettle, now: now, result: Result{Key: row.Key, Epoch: row.Epoch, Outcome: NoCharge}})
				require.Equal(t, Errored, row.State, released)
				row, _, d = p.apply(row, event{kind: evBegin, now: now.Add(time.Minute), promotion: PromotionRunning, same: true})
			}
			require.Equal(t, Send, d.next, released)
			row, _, _ = p.apply(row, event{kind: evSettle, now: now, result: Result{Key: row.Key, Epoch: row.Epoch, Outcome: o, TransactionKey: "tx"}})
		}
		for range 2 * p.maxAsks {
			call(released)
			require.Equal(t, Errored, row.State, released)
			require.Equal(t, 1, row.Attempts, released)
			require.LessOrEqual(t, row.Asks, 1, released)
		}
		call(TryAgain)
		require.False(t, row.NoChargeSeen, "the API has heard of the key since")
		call(Paid)
		require.Equal(t, Success, row.State)
	}
	row := shapes()["expired"]
	row.NoChargeSeen = true
	row, _, _ = p.apply(row, event{kind: evBegin, now: t0, promotion: PromotionRunning, same: true})
	require.False(t, row.NoChargeSeen, "it may have been sent")
}
