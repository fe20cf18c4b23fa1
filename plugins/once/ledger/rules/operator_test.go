package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each shape of a row, in each state of its group.
func TestReplayTable(t *testing.T) {
	t.Parallel()
	can := map[string]State{"failed": Pending, "unknown": Ambiguous}
	for name, row := range shapes() {
		for _, group := range []GroupState{GroupRunning, GroupPaused, GroupCancelled} {
			next, eff, d := testPolicy().Apply(row, Event{Kind: EventReplay, Now: t0, Group: group})
			checkStep(t, row, next, eff, d)
			to, ok := can[name]
			if !ok || group == GroupCancelled {
				require.NotEmpty(t, d.Refused, name)
				require.Equal(t, row, next, name)
				require.Equal(t, Writes{}, eff, name)
				continue
			}
			require.Empty(t, d.Refused, name)
			require.Equal(t, Writes{LeftState: row.State}, eff, name)
			want := row
			want.State, want.Queue, want.QueueDue, want.Version, want.Epoch = to, QueueNone, t0, row.Version+1, row.Epoch+1
			want.Attempts, want.Lookups, want.Failures, want.SettledAt = 0, 0, 0, time.Time{}
			require.Equal(t, want, next, "%s: nothing else changes, above all not whether and since when it may be charged", name)

			// Within the ttl of the key it is sent again; later it is looked up first.
			_, _, d = testPolicy().Apply(next, Event{Kind: EventBegin, Now: t0, Group: GroupRunning, SameRequest: true})
			require.Equal(t, Send, d.Next, name)
			_, _, d = testPolicy().Apply(next, Event{Kind: EventBegin, Now: t0.Add(2 * time.Hour), Group: GroupRunning, SameRequest: true})
			require.Equal(t, Lookup, d.Next, name)
		}
	}
	spent := shapes()["unknown"]
	spent.Attempts, spent.Lookups, spent.Released, spent.Failures = 3, 3, 8, 6
	next, _, _ := testPolicy().Apply(spent, Event{Kind: EventReplay, Now: t0, Group: GroupRunning})
	require.Zero(t, next.Attempts+next.Lookups+next.Released+next.Failures, "all attempts are before it again")
}

// An operator resolves UNKNOWN effects, and with force AMBIGUOUS ones that are only looked up.
func TestResolveTable(t *testing.T) {
	t.Parallel()
	lookups := map[string]bool{"ambiguous must look up": true, "ambiguous old": true, "ambiguous used up": true, "ambiguous released": true, "ambiguous, key long used": true}
	for name, row := range shapes() {
		for i := range 12 {
			group := []GroupState{GroupRunning, GroupPaused, GroupCancelled}[i%3]
			r := Resolution{Done: i/3%2 == 0, Receipt: "tx", Who: "me", Why: "their journal", Force: i/6 == 0}
			if !r.Done {
				r.Receipt = ""
			}
			next, eff, d := testPolicy().Apply(row, Event{Kind: EventResolve, Now: t0, Group: group, Resolution: r})
			checkStep(t, row, next, eff, d)
			looked := lookups[name] || group == GroupCancelled && (name == "ambiguous due" || name == "ambiguous not due")
			effect := Writes{Settled: true, LeftState: Unknown}
			switch {
			case name == "unknown":
			case looked && r.Force && r.Done:
				effect = Writes{Settled: true}
			case looked && r.Force:
				effect = Writes{Settled: true, DeadLetterClass: ClassResolved}
			default:
				require.NotEmpty(t, d.Refused, name)
				require.Equal(t, row, next, name)
				require.Equal(t, Writes{}, eff, name)
				continue
			}
			require.Empty(t, d.Refused, name)
			require.Equal(t, effect, eff, name)
			want := row
			want.State, want.Version, want.Epoch, want.SettledAt, want.Receipt = Success, row.Version+1, row.Epoch+1, t0, "tx"
			want.NextAttemptAt, want.LookingUp = time.Time{}, false
			if !r.Done {
				want.State, want.Receipt, want.MaybeDone, want.FirstSentAt = Failed, "", false, time.Time{}
				want.LastClass, want.LastError = ClassResolved, "their journal"
			}
			require.Equal(t, want, next, name)
		}
	}
}
