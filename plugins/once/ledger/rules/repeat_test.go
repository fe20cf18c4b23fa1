package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What follows a call that may have taken effect, for each kind of far side: the next action at the
// time of the shapes, and the state afterwards.
func TestRepeatTable(t *testing.T) {
	t.Parallel()
	columns := []string{"keys and lookups", "keys", "lookups", "never", "always", "not said"}
	table := map[string]string{
		"pending":                 "send SENDING | send SENDING | send SENDING | send SENDING | send SENDING | send SENDING",
		"error due":               "send SENDING | send SENDING | send SENDING | send SENDING | send SENDING | send SENDING",
		"error used up":           "ack FAILED | ack FAILED | ack FAILED | ack FAILED | ack FAILED | ack FAILED",
		"error old":               "lookup SENDING | send SENDING | send SENDING | send SENDING | send SENDING | send SENDING",
		"expired":                 "send SENDING | send SENDING | retry SENDING | ack UNKNOWN | send SENDING | ack UNKNOWN",
		"expired last":            "lookup SENDING | ack UNKNOWN | retry SENDING | ack UNKNOWN | ack UNKNOWN | ack UNKNOWN",
		"ambiguous due":           "send SENDING | send SENDING | lookup SENDING | ack UNKNOWN | send SENDING | ack UNKNOWN",
		"ambiguous old":           "lookup SENDING | ack UNKNOWN | lookup SENDING | ack UNKNOWN | send SENDING | ack UNKNOWN",
		"ambiguous old looked up": "ack UNKNOWN | ack UNKNOWN | ack UNKNOWN | ack UNKNOWN | send SENDING | ack UNKNOWN",
		"ambiguous used up":       "lookup SENDING | ack UNKNOWN | lookup SENDING | ack UNKNOWN | ack UNKNOWN | ack UNKNOWN",
	}
	policies, rows := repeats(), shapes()
	for shape, want := range table {
		var got []string
		for _, name := range columns {
			next, eff, d := policies[name].Apply(rows[shape], Event{Kind: EventBegin, Now: t0, Group: GroupRunning, SameRequest: true})
			checkStepOf(t, policies[name], rows[shape], next, eff, d)
			got = append(got, d.Next.String()+" "+string(next.State))
		}
		require.Equal(t, want, strings.Join(got, " | "), shape)
	}

	// A cancelled group sends nothing, and denies nothing.
	for name, want := range map[string]string{
		"keys and lookups": "lookup SENDING", "keys": "ack UNKNOWN", "lookups": "lookup SENDING", "never": "ack UNKNOWN", "always": "ack UNKNOWN",
	} {
		next, _, d := policies[name].Apply(rows["ambiguous due"], Event{Kind: EventBegin, Now: t0, Group: GroupCancelled, SameRequest: true})
		require.Equal(t, want, d.Next.String()+" "+string(next.State), name)
	}
}

// The state after a send, and when the next call may begin.
func TestAnUnclearSendOfEachRepeat(t *testing.T) {
	t.Parallel()
	row := shapes()["sending"] // the first of three attempts
	for name, want := range map[string]map[Outcome]string{
		"keys and lookups": {Unclear: "AMBIGUOUS send 1s", TryAgain: "ERROR send 1s", Rejected: "FAILED ack 0s", Unrecognized: "AMBIGUOUS send 1s"},
		"keys":             {Unclear: "AMBIGUOUS send 1s", TryAgain: "ERROR send 1s", Rejected: "FAILED ack 0s", Unrecognized: "AMBIGUOUS send 1s"},
		"lookups":          {Unclear: "AMBIGUOUS lookup 1m0s", TryAgain: "ERROR send 1s", Rejected: "FAILED ack 0s", Unrecognized: "AMBIGUOUS lookup 1m0s"},
		"never":            {Unclear: "UNKNOWN ack 0s", TryAgain: "ERROR send 1s", Rejected: "FAILED ack 0s", Unrecognized: "UNKNOWN ack 0s"},
		"always":           {Unclear: "AMBIGUOUS send 1s", TryAgain: "ERROR send 1s", Rejected: "FAILED ack 0s", Unrecognized: "AMBIGUOUS send 1s"},
	} {
		p := repeats()[name]
		for outcome, want := range want {
			next, eff, d := p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: CallResult{Epoch: row.Epoch, Outcome: outcome}})
			checkStepOf(t, p, row, next, eff, d)
			then, at := Ack, t0
			if !next.State.Settled() {
				then, at = p.NextBegin(next, GroupRunning, t0)
			}
			require.Equal(t, want, string(next.State)+" "+then.String()+" "+at.Sub(t0).String(), "%s, %s", name, outcome)
		}
	}
}

// Without keys, a lookup that finds nothing proves it, because no request is under way any more.
// With keys it proves nothing.
func TestALookupThatFindsNothing(t *testing.T) {
	t.Parallel()
	row := shapes()["sending lookup"]
	for name, want := range map[string]string{"keys and lookups": "AMBIGUOUS true", "lookups": "ERROR false"} {
		p := repeats()[name]
		next, eff, d := p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: CallResult{Epoch: row.Epoch, Outcome: NotDone}})
		checkStepOf(t, p, row, next, eff, d)
		then, _ := p.NextBegin(next, GroupRunning, t0)
		require.Equal(t, Send, then, name)
		require.Equal(t, want, string(next.State)+map[bool]string{true: " true", false: " false"}[next.MaybeDone], name)
		cancelled, _ := p.NextBegin(next, GroupCancelled, t0)
		require.Equal(t, next.MaybeDone, cancelled == Lookup, "%s: what certainly did not happen is cancelled", name)
	}
}

// The lease of a worker that was killed ends when its request has arrived, if only a lookup can tell.
func TestALookupWaitsForTheRequestsOfADeadWorker(t *testing.T) {
	t.Parallel()
	row := shapes()["expired"]
	p := repeats()["lookups"]
	next, at := p.NextBegin(row, GroupRunning, t0)
	require.Equal(t, Lookup, next)
	require.Equal(t, row.LeaseUntil.Add(p.UnderWay), at)
	_, _, d := p.Apply(row, Event{Kind: EventBegin, Now: t0, Group: GroupRunning, SameRequest: true})
	require.Equal(t, at.Sub(t0), d.RetryIn)
}

// A replay is refused when no call could find out what happened. The row stays as it is.
func TestAReplayThatFindsNothingOutIsRefused(t *testing.T) {
	t.Parallel()
	young := shapes()["unknown"]
	old := young
	old.KeyFirstUsedAt, old.FirstSentAt = t0.Add(-2*time.Hour), t0.Add(-2*time.Hour)
	for name, want := range map[string][2]bool{ // refused: young, old
		"keys and lookups": {false, false}, "keys": {false, true}, "lookups": {false, false}, "never": {true, true}, "always": {false, false}, "not said": {true, true},
	} {
		for i, row := range []Row{young, old} {
			next, eff, d := repeats()[name].Apply(row, Event{Kind: EventReplay, Now: t0, Group: GroupRunning})
			require.Equal(t, want[i], d.Refused != 0, "%s: %d", name, d.Refused)
			if want[i] {
				require.Equal(t, row, next)
				require.Equal(t, Writes{}, eff)
			}
		}
	}
}

// What ends UNKNOWN needs a dead letter. While the database refuses it, the effect stays unsettled.
func TestAPostponedCallEndsNothing(t *testing.T) {
	t.Parallel()
	for name, p := range repeats() {
		for _, outcome := range []Outcome{Done, Unclear, Rejected, TryAgain} {
			row := shapes()["sending"]
			res := CallResult{Epoch: row.Epoch, Outcome: outcome, Receipt: "tx"}
			next, _, _ := p.Apply(row, Event{Kind: EventSettle, Now: t0, Result: res.Postponed(false)})
			require.False(t, next.State.Settled(), "%s, %s: %s", name, outcome, next.State)
		}
	}
}
