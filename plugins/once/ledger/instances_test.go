package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// tell has an instance say that it calls for nothing, and why.
func tell(t *testing.T, l *Ledger, reason string) {
	t.Helper()
	require.NoError(t, l.SetActivity(t.Context(), "invoice", &Activity{Reason: reason}))
}

func instancesOf(t *testing.T, l *Ledger) Instances {
	t.Helper()
	all, err := l.Instances(t.Context(), "invoice")
	require.NoError(t, err)
	return all
}

// rowsOf counts the rows of once_instances.
func rowsOf(t *testing.T, l *Ledger) (n int) {
	t.Helper()
	require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
		return q.query(t.Context(), func(r scanner) error { return r.Scan(&n) }, `SELECT count(*) FROM once_instances`)
	}))
	return n
}

// A stop begins with the first that was told, and ends when its instance says so, or says nothing any more.
func TestAStopIsKnownToOthers(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b/1"))
		stops := func() (texts []string) {
			all, err := b.Stops(t.Context(), "invoice")
			require.NoError(t, err)
			for _, s := range all {
				texts = append(texts, s.Instance+": "+s.Reason)
			}
			return texts
		}
		tell(t, a, "the breaker is open")
		first, err := b.Stops(t.Context(), "invoice")
		require.NoError(t, err)
		h.advance(10 * time.Second)
		tell(t, a, "still")
		again, err := b.Stops(t.Context(), "invoice")
		require.NoError(t, err)
		require.Equal(t, first[0].Since, again[0].Since)
		h.advance(10 * time.Second)
		tell(t, b, "mine")
		require.Equal(t, []string{"a: still", "b/1: mine"}, stops())
		require.Len(t, mustHeld(t, a, key("acme", 1)).Stops, 2)
		h.advance(6 * time.Second)
		require.Equal(t, []string{"b/1: mine"}, stops(), "a was killed")
		tell(t, b, "")
		require.Empty(t, stops(), "it calls")
		require.Len(t, instancesOf(t, a).All, 2)
		tell(t, a, "once more")
		all, err := b.Stops(t.Context(), "invoice")
		require.NoError(t, err)
		require.True(t, all[0].Since.After(first[0].Since.Add(20*time.Second)))
	})
}

// What each instance does is read by any process, and an idle one has no row.
func TestInstancesTellWhatTheyDo(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b"))
		require.Empty(t, instancesOf(t, a).All)
		does := Activity{
			Bound: "concurrency", Calling: 3, Concurrency: 4, StepSeconds: 2.5, Counts: Counts{Seconds: 60, Settled: []int64{4, 0, 7}, Done: []int64{4}},
			Groups: map[string]Counts{"acme": {Seconds: 30, Settled: []int64{4}}}, More: true, Answers: map[string]int64{"done": 4}, Took: []int64{0, 11}, CallSeconds: 1.5,
		}
		require.NoError(t, a.SetActivity(t.Context(), "invoice", &does))
		tell(t, b, "the breaker is open")
		all := instancesOf(t, b)
		require.Len(t, all.All, 2)
		require.Equal(t, does, all.All[0].Activity)
		require.Equal(t, []string{"a", "b"}, []string{all.All[0].Name, all.All[1].Name})
		require.Equal(t, "the breaker is open", all.All[1].Reason)
		require.False(t, all.All[0].Gone || all.All[1].Gone)
		require.Less(t, all.Now.Sub(all.All[0].At), 10*time.Second)

		parcels, err := a.Instances(t.Context(), "parcel")
		require.NoError(t, err)
		require.Empty(t, parcels.All, "another kind")
		require.NoError(t, a.SetActivity(t.Context(), "invoice", nil))
		require.Len(t, instancesOf(t, b).All, 1)
		require.Equal(t, 1, rowsOf(t, b))
	})
}

// An instance that was killed is gone, with the leases it had. They are not those of the one that was started with its name.
func TestAnInstanceThatIsGone(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		killed, other := h.open(t), h.open(t, as("b"))
		mustAccept(t, killed, record("acme", 1), record("acme", 2), record("zeta", 3))
		require.NoError(t, killed.SetActivity(t.Context(), "invoice", &Activity{Calling: 2}))
		tell(t, other, "")
		h.advance(9 * time.Second) // so that its leases outlast its silence a little
		require.Len(t, claimAll(t, killed, "invoice"), 3)
		h.advance(5 * time.Second)
		tell(t, other, "")
		started := h.open(t) // with the name of the killed one
		mustAccept(t, started, record("acme", 4))
		require.Len(t, claimAll(t, started, "invoice"), 1)
		require.NoError(t, started.SetActivity(t.Context(), "invoice", &Activity{Calling: 1}))

		h.advance(2 * time.Second)
		all := instancesOf(t, other)
		require.Len(t, all.All, 3)
		byLeases := map[int64]Instance{}
		for _, i := range all.All {
			byLeases[i.Leases] = i
		}
		gone, again, idle := byLeases[3], byLeases[1], byLeases[0]
		require.Equal(t, []string{"a", "a", "b"}, []string{gone.Name, again.Name, idle.Name})
		require.Equal(t, []bool{true, false, false}, []bool{gone.Gone, again.Gone, idle.Gone})
		require.Equal(t, 2, gone.Calling, "what it told last")
		require.WithinDuration(t, all.Now.Add(time.Second), gone.LeasesEnd, time.Second)
		require.WithinDuration(t, all.Now.Add(6*time.Second), again.LeasesEnd, time.Second)
		require.Greater(t, all.Now.Sub(gone.At), GoneAfter)

		h.advance(4 * time.Second)
		for _, i := range instancesOf(t, other).All {
			require.Equal(t, i.Name == "a" && !i.Gone, i.Leases > 0, "those of the killed one have ended")
		}
		h.advance(2 * time.Minute)
		require.Empty(t, instancesOf(t, other).All, "nobody is told of it for long")
		require.Equal(t, 3, rowsOf(t, other))
		require.NoError(t, other.SetActivity(t.Context(), "invoice", nil))
		require.Zero(t, rowsOf(t, other), "the rows of killed ones are forgotten when another one begins or ends")
	})
}

// An instance that was killed before it told anything is known by its leases.
func TestAnInstanceThatHasToldNothing(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b"))
		long := Kind{Name: "invoice", Policy: policyOf("invoice")}
		long.Policy.Lease = 10 * time.Minute
		require.NoError(t, a.Register(t.Context(), long))
		mustAccept(t, a, record("acme", 1), record("zeta", 2))
		require.Len(t, claimAll(t, a, "invoice"), 2)
		all := instancesOf(t, b).All
		require.Len(t, all, 1)
		require.Equal(t, "a", all[0].Name)
		require.False(t, all[0].Gone, "it has just begun")
		h.advance(GoneAfter + time.Second)
		all = instancesOf(t, b).All
		require.Len(t, all, 1)
		require.True(t, all[0].Gone)
		require.EqualValues(t, 2, all[0].Leases)
		require.True(t, all[0].At.IsZero())
	})
}

// An activity costs one statement while it lasts.
func TestAnActivityIsOneStatement(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		s := &countingStore{store: l.store}
		l.store = s
		for _, want := range []int64{2, 1, 1} { // what others have left is deleted with the first one
			s.statements = 0
			tell(t, l, "")
			require.Equal(t, want, s.statements)
		}
	})
}

// countingStore counts the statements in updates that change something.
type countingStore struct {
	store
	statements int64
}

func (s *countingStore) update(ctx context.Context, lock groupLock, fn func(querier, time.Time) error) error {
	return s.store.update(ctx, lock, func(q querier, now time.Time) error { return fn(&countingQuerier{q, s}, now) })
}

type countingQuerier struct {
	querier
	s *countingStore
}

func (q *countingQuerier) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	q.s.statements++
	return q.querier.exec(ctx, sql, args...)
}

// A group that was resumed says for how long it has run.
func TestHowLongAGroupHasRunSinceItWasResumed(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		g := Group{Kind: "invoice", Name: "acme"}
		mustAccept(t, l, record("acme", 1))
		require.NoError(t, l.Sweep(t.Context()))
		h.advance(time.Minute)
		require.Zero(t, mustStatus(t, l, g).ResumedFor)
		require.NoError(t, l.Pause(t.Context(), g, operator))
		h.advance(time.Minute)
		require.Zero(t, mustStatus(t, l, g).ResumedFor)
		require.NoError(t, l.Resume(t.Context(), g, operator))
		h.advance(20 * time.Second)
		require.InDelta(t, 20, mustStatus(t, l, g).ResumedFor.Seconds(), 10)
		mustSettle(t, l, end(claimAll(t, l, "invoice")[0], rules.Done))
		require.Equal(t, rules.GroupRunning, mustStatus(t, l, g).State)
	})
}
