package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A postponed call never ends its effect and spends no attempt, and what may have been charged stays
// possible. So a database that refuses dead letters for a long time makes no effect UNKNOWN.
func TestAPostponedCallChangesAsLittleAsPossible(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	for name, row := range shapes() {
		if row.State != Sending {
			continue
		}
		if row.LookingUp {
			row.KeyFirstUsedAt = t0.Add(-2 * p.KeyTTL) // refused lookups count now, and postponed ones do not
		}
		for _, o := range []Outcome{Done, Throttled, TryAgain, Unclear, Rejected, Misconfigured, NotDone, Interrupted, NotSent, Unrecognized} {
			res := CallResult{Epoch: row.Epoch, Outcome: o, Counted: true, Receipt: "TX-1", Answer: "said"}.Postponed(row.LookingUp)
			require.NoError(t, res.Validate())
			next, eff, d := p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: res})
			checkStep(t, row, next, eff, d)
			require.False(t, next.State.Settled(), "%s: %s", name, o)
			require.Empty(t, eff.DeadLetterClass, "%s: %s", name, o)
			require.Equal(t, row.Attempts+row.Lookups-1, next.Attempts+next.Lookups, "%s: %s spends nothing", name, o)
			require.Equal(t, row.Released, next.Released, "%s: %s", name, o)
			charged := !row.LookingUp && (o == Done || o == Unclear || o == NotDone || o == Unrecognized)
			require.Equal(t, row.MaybeDone || charged, next.MaybeDone, "%s: %s", name, o)
			require.Contains(t, eff.Attempt.Answer, "said")
			if o == Done {
				require.Contains(t, eff.Attempt.Answer, "receipt TX-1", "the evidence stays")
			}
			again, _, _ := p.Apply(next, Event{Kind: EventBegin, Now: next.NextAttemptAt.Add(time.Millisecond), Group: GroupRunning, SameRequest: true})
			require.Equal(t, Sending, again.State, "%s: %s is repeated", name, o)
		}
	}
}
