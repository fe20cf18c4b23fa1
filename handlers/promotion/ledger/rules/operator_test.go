package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each shape of a row, in each state of its promotion.
func TestReplayTable(t *testing.T) {
	t.Parallel()
	can := map[string]State{"failed": Pending, "unknown": Ambiguous}
	for name, row := range shapes() {
		for _, promotion := range []PromotionState{PromotionRunning, PromotionPaused, PromotionCancelled} {
			next, eff, d := testPolicy().Apply(row, Event{Kind: EventReplay, Now: t0, Promotion: promotion})
			checkStep(t, row, next, eff, d)
			to, ok := can[name]
			if !ok || promotion == PromotionCancelled {
				require.NotEmpty(t, d.Refused, name)
				require.Equal(t, row, next, name)
				require.Equal(t, Effects{}, eff, name)
				continue
			}
			require.Empty(t, d.Refused, name)
			require.Equal(t, Effects{LeftState: row.State}, eff, name)
			want := row
			want.State, want.Queue, want.QueueDue, want.Version, want.Epoch = to, QueueNone, t0, row.Version+1, row.Epoch+1
			want.Attempts, want.Lookups, want.Failures, want.SettledAt = 0, 0, 0, time.Time{}
			require.Equal(t, want, next, "%s: nothing else changes, above all not whether and since when it may be charged", name)

			// Within the ttl of the key it is sent again; later it is looked up first.
			_, _, d = testPolicy().Apply(next, Event{Kind: EventBegin, Now: t0, Promotion: PromotionRunning, SameRequest: true})
			require.Equal(t, Send, d.Next, name)
			_, _, d = testPolicy().Apply(next, Event{Kind: EventBegin, Now: t0.Add(2 * time.Hour), Promotion: PromotionRunning, SameRequest: true})
			require.Equal(t, Lookup, d.Next, name)
		}
	}
	spent := shapes()["unknown"]
	spent.Attempts, spent.Lookups, spent.Released, spent.Failures = 3, 3, 8, 6
	next, _, _ := testPolicy().Apply(spent, Event{Kind: EventReplay, Now: t0, Promotion: PromotionRunning})
	require.Zero(t, next.Attempts+next.Lookups+next.Released+next.Failures, "all attempts are before it again")
}

// An operator resolves UNKNOWN payouts, and with force AMBIGUOUS ones that are only looked up.
func TestResolveTable(t *testing.T) {
	t.Parallel()
	lookups := map[string]bool{"ambiguous must look up": true, "ambiguous old": true, "ambiguous used up": true, "ambiguous released": true, "ambiguous, key long used": true}
	for name, row := range shapes() {
		for i := range 12 {
			promotion := []PromotionState{PromotionRunning, PromotionPaused, PromotionCancelled}[i%3]
			r := Resolution{Paid: i/3%2 == 0, TransactionKey: "tx", Who: "me", Why: "their journal", Force: i/6 == 0}
			if !r.Paid {
				r.TransactionKey = ""
			}
			next, eff, d := testPolicy().Apply(row, Event{Kind: EventResolve, Now: t0, Promotion: promotion, Resolution: r})
			checkStep(t, row, next, eff, d)
			looked := lookups[name] || promotion == PromotionCancelled && (name == "ambiguous due" || name == "ambiguous not due")
			effect := Effects{Settled: true, LeftState: Unknown}
			switch {
			case name == "unknown":
			case looked && r.Force && r.Paid:
				effect = Effects{Settled: true}
			case looked && r.Force:
				effect = Effects{Settled: true, DeadLetterClass: ClassResolved}
			default:
				require.NotEmpty(t, d.Refused, name)
				require.Equal(t, row, next, name)
				require.Equal(t, Effects{}, eff, name)
				continue
			}
			require.Empty(t, d.Refused, name)
			require.Equal(t, effect, eff, name)
			want := row
			want.State, want.Version, want.Epoch, want.SettledAt, want.TransactionKey = Success, row.Version+1, row.Epoch+1, t0, "tx"
			want.NextAttemptAt, want.LookingUp = time.Time{}, false
			if !r.Paid {
				want.State, want.TransactionKey, want.MaybeCharged, want.FirstSentAt = Failed, "", false, time.Time{}
				want.LastClass, want.LastError = ClassResolved, "their journal"
			}
			require.Equal(t, want, next, name)
		}
	}
}
