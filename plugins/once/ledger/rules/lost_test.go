package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What follows the next begin of an effect that may have been called for in a time that the ledger has lost.
// The key is an hour old at most when it is sent.
func TestLostTable(t *testing.T) {
	t.Parallel()
	columns := []string{"keys and lookups", "keys", "lookups", "never", "always"}
	young := Lost{Since: t0.Add(-30 * time.Minute), Until: t0.Add(-1)}
	old := Lost{Since: t0.Add(-2 * time.Hour), Until: young.Until}
	for _, c := range []struct {
		lost  Lost
		table map[string]string
	}{
		{young, map[string]string{
			"pending":              "lookup SENDING | send SENDING | retry PENDING | ack UNKNOWN | send SENDING",
			"error due":            "lookup SENDING | send SENDING | retry ERROR | ack UNKNOWN | send SENDING",
			"error old, no charge": "lookup SENDING | ack UNKNOWN | retry ERROR | ack UNKNOWN | send SENDING",
			"error old, looked up": "lookup SENDING | ack UNKNOWN | retry ERROR | ack UNKNOWN | send SENDING",
			"expired":              "lookup SENDING | send SENDING | retry SENDING | ack UNKNOWN | send SENDING",
			"expired lookup":       "lookup SENDING | ack UNKNOWN | retry SENDING | ack UNKNOWN | ack UNKNOWN",
			"ambiguous due":        "lookup SENDING | send SENDING | retry AMBIGUOUS | ack UNKNOWN | send SENDING",
			"sending":              "retry SENDING | retry SENDING | retry SENDING | retry SENDING | retry SENDING",
			"success":              "ack SUCCESS | ack SUCCESS | ack SUCCESS | ack SUCCESS | ack SUCCESS",
			// It was not due before the end of the loss, so nobody has called for it.
			"error not due": "retry ERROR | retry ERROR | retry ERROR | retry ERROR | retry ERROR",
		}},
		{old, map[string]string{
			"pending":   "lookup SENDING | ack UNKNOWN | retry PENDING | ack UNKNOWN | send SENDING",
			"error due": "lookup SENDING | ack UNKNOWN | retry ERROR | ack UNKNOWN | send SENDING",
			"expired":   "lookup SENDING | ack UNKNOWN | retry SENDING | ack UNKNOWN | send SENDING",
		}},
	} {
		for shape, want := range c.table {
			var got []string
			for _, name := range columns {
				p, row := repeats()[name], shapes()[shape]
				require.NotEmpty(t, row.State, shape)
				p.Lost = []Lost{c.lost}
				next, eff, d := p.Apply(row, Event{Kind: EventBegin, Now: t0, Group: GroupRunning, SameRequest: true})
				checkStepOf(t, p, row, next, eff, d)
				got = append(got, d.Next.String()+" "+string(next.State))
			}
			require.Equal(t, want, strings.Join(got, " | "), shape)
		}
	}
}

// A lookup of a far side without keys proves nothing while a request of the lost time may be under way. What
// it then does not find is sent, once, like any other effect.
func TestALookupWaitsForRequestsOfTheLostTime(t *testing.T) {
	t.Parallel()
	p := repeats()["lookups"]
	p.Lost = []Lost{{Since: t0.Add(-30 * time.Minute), Until: t0}}
	begin := func(row Row, at time.Time) (Row, Decision) {
		row, _, d := p.Apply(row, Event{Kind: EventBegin, Now: at, Group: GroupRunning, SameRequest: true})
		return row, d
	}
	quiet := t0.Add(time.Minute)
	read, _, _ := p.Apply(Row{}, Event{Kind: EventAccept, Now: t0.Add(time.Second), Group: GroupRunning, Published: t0.Add(-time.Second)})
	for name, row := range map[string]Row{"pending": shapes()["pending"], "expired": shapes()["expired"], "ambiguous": shapes()["ambiguous due"], "read again": read} {
		next, at := p.NextBegin(row, GroupRunning, t0)
		require.Equal(t, Lookup, next, name)
		require.False(t, at.Before(quiet), "%s: %s", name, at)
		row, d := begin(row, quiet.Add(-time.Second))
		require.Equal(t, Retry, d.Next, name)
		row, d = begin(row, quiet.Add(time.Minute)) // also after a lease
		require.Equal(t, Lookup, d.Next, name)
		row, _, _ = p.Apply(row, Event{Kind: EventSettle, Now: quiet.Add(time.Minute), Result: CallResult{Epoch: row.Epoch, Outcome: NotDone}})
		require.False(t, row.MaybeDone, name)
		_, d = begin(row, quiet.Add(2*time.Minute))
		require.Equal(t, Send, d.Next, "%s: the lookup was after the loss", name)
	}
}

// A record that is read again is an effect that may have been done; a later record, and the value of a caller,
// is a new one. A cancellation denies nothing that may have been done.
func TestARecordThatIsReadAgainMayBeDone(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	p.Lost = []Lost{{Since: t0.Add(-30 * time.Minute), Until: t0}, {Since: t0.Add(-40 * time.Minute), Until: t0.Add(-35 * time.Minute)}}
	accept := func(published time.Time, notBefore time.Time, group GroupState) Row {
		row, _, _ := p.Apply(Row{NextAttemptAt: notBefore}, Event{Kind: EventAccept, Now: t0.Add(time.Second), Group: group, Published: published})
		return row
	}
	again := accept(t0.Add(-time.Second), time.Time{}, GroupRunning)
	require.Equal(t, Ambiguous, again.State)
	require.Equal(t, t0.Add(-30*time.Minute), again.FirstSentAt, "the key may be as old as the loss, and the other loss is older than the record")
	require.Equal(t, t0.Add(-40*time.Minute), accept(t0.Add(-time.Hour), time.Time{}, GroupRunning).FirstSentAt)
	require.Equal(t, Ambiguous, accept(t0.Add(-time.Second), time.Time{}, GroupCancelled).State)
	for name, row := range map[string]Row{
		"published later": accept(t0, time.Time{}, GroupRunning),
		"enqueued":        accept(time.Time{}, time.Time{}, GroupRunning),
		"not due before":  accept(t0.Add(-time.Second), t0.Add(time.Minute), GroupRunning),
	} {
		require.Equal(t, Pending, row.State, name)
		require.False(t, row.MaybeDone, name)
	}

	for _, name := range []string{"pending", "error due"} {
		row := shapes()[name]
		next, _, _ := p.Apply(row, Event{Kind: EventCancel, Now: t0})
		require.Equal(t, row, next, name)
		next, _, _ = p.Apply(row, Event{Kind: EventAcceptAgain, Now: t0, Group: GroupCancelled, SameRequest: true})
		require.False(t, next.State.Settled(), name)
		next, _, d := p.Apply(row, Event{Kind: EventBegin, Now: t0, Group: GroupCancelled, SameRequest: true})
		require.Equal(t, Lookup, d.Next, name)
		require.True(t, next.MaybeDone, name)
	}
}

// An operator may have replayed what had failed, so its replay is looked up first. Without a lookup the operator
// decides, and the replay is sent.
func TestAReplayAfterALoss(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Next{"keys and lookups": Lookup, "lookups": Lookup, "keys": Send, "never": Send, "always": Send} {
		p := repeats()[name]
		p.Lost = []Lost{{Since: t0.Add(-30 * time.Minute), Until: t0.Add(-500 * time.Millisecond)}}
		row := shapes()["failed"] // before the end of the loss
		next, eff, d := p.Apply(row, Event{Kind: EventReplay, Now: t0, Group: GroupRunning})
		require.Empty(t, d.Refused, name)
		checkStepOf(t, p, row, next, eff, d)
		_, _, d = p.Apply(next, Event{Kind: EventBegin, Now: t0.Add(time.Second), Group: GroupRunning, SameRequest: true})
		require.Equal(t, want, d.Next, name)

		row.SettledAt = t0 // after the loss
		next, _, _ = p.Apply(row, Event{Kind: EventReplay, Now: t0.Add(time.Second), Group: GroupRunning})
		_, _, d = p.Apply(next, Event{Kind: EventBegin, Now: t0.Add(2 * time.Second), Group: GroupRunning, SameRequest: true})
		require.Equal(t, Send, d.Next, name)
	}
}

func TestWhatIsLostIsSaid(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	p.Lost = []Lost{{Since: t0.Add(-30 * time.Minute), Until: t0}}
	lost, ok := p.MayBeLost(shapes()["pending"])
	require.True(t, ok)
	require.Equal(t, p.Lost[0], lost)
	_, ok = p.MayBeLost(shapes()["success"])
	require.False(t, ok)
	later := shapes()["expired"]
	later.AttemptStartedAt = t0
	_, ok = p.MayBeLost(later)
	require.False(t, ok, "its call began after the loss")
	fresh := shapes()["pending"]
	fresh.AcceptedAt = t0
	_, ok = p.MayBeLost(fresh)
	require.False(t, ok, "it was accepted after the loss")
	seen := shapes()["error due"]
	seen.NotDoneSeen = true
	next, _, d := p.Apply(seen, Event{Kind: EventBegin, Now: t0, Group: GroupRunning, SameRequest: true})
	require.Equal(t, Lookup, d.Next)
	require.False(t, next.NotDoneSeen, "that was before the loss")
	p.Repeat = Never
	row, _, _ := p.Apply(shapes()["pending"], Event{Kind: EventBegin, Now: t0, Group: GroupRunning, SameRequest: true})
	require.Equal(t, []string{restored, "the ledger was restored: calls from " + t0.Add(-30*time.Minute).UTC().Format(time.RFC3339) + " to " + t0.UTC().Format(time.RFC3339) + " are not in it"},
		[]string{row.LastClass, row.LastError})
}
