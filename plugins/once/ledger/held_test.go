package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func mustHeld(t *testing.T, l *Ledger, k Key) Held {
	t.Helper()
	h, err := l.Held(t.Context(), k)
	require.NoError(t, err)
	return h
}

func TestWhatHoldsAnEffectBack(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		limited(t, Limits{PerSecond: 0.001, InFlight: 7}, l)
		mustAccept(t, l, record("acme", 1))
		h.advance(time.Minute)
		mustAccept(t, l, record("zeta", 2))
		h.advance(time.Second)
		held := mustHeld(t, l, key("zeta", 2))
		require.GreaterOrEqual(t, held.DueFor, time.Second)
		require.Less(t, held.DueFor, time.Minute)
		require.EqualValues(t, 1, held.Ahead)
		require.Zero(t, held.Calling)
		require.Zero(t, held.TokenIn)
		require.Equal(t, InForce{Limits{0.001, 7}, FromSettings, FromSettings}, held.Limits)
		require.Zero(t, mustHeld(t, l, key("acme", 1)).Ahead)

		require.Equal(t, 1, mustPermit(t, l, Ask{Tokens: 1}).Tokens)
		require.Greater(t, mustHeld(t, l, key("zeta", 2)).TokenIn, 15*time.Minute)

		claimed := claimAll(t, l, "invoice")
		require.Len(t, claimed, 2)
		held = mustHeld(t, l, key("zeta", 2))
		require.EqualValues(t, 2, held.Calling)
		require.Zero(t, held.DueFor, "it has a lease")
		mustSettle(t, l, end(claimed[0], rules.Done), end(claimed[1], rules.Done))
		require.Zero(t, mustHeld(t, l, key("zeta", 2)).DueFor, "it is settled")
	})
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
		require.NoError(t, a.SetStop(t.Context(), "invoice", "the breaker is open", time.Minute))
		first, err := b.Stops(t.Context(), "invoice")
		require.NoError(t, err)
		h.advance(30 * time.Second)
		require.NoError(t, a.SetStop(t.Context(), "invoice", "still", time.Minute))
		again, err := b.Stops(t.Context(), "invoice")
		require.NoError(t, err)
		require.Equal(t, first[0].Since, again[0].Since)
		require.NoError(t, b.SetStop(t.Context(), "invoice", "mine", 2*time.Minute))
		require.Equal(t, []string{"a: still", "b/1: mine"}, stops())
		require.Len(t, mustHeld(t, a, key("acme", 1)).Stops, 2)
		h.advance(90 * time.Second)
		require.Equal(t, []string{"b/1: mine"}, stops(), "a was killed")
		require.NoError(t, b.SetStop(t.Context(), "invoice", "", 0))
		require.Empty(t, stops())
		require.NoError(t, a.SetStop(t.Context(), "invoice", "anew", time.Minute))
		all, err := b.Stops(t.Context(), "invoice")
		require.NoError(t, err)
		require.True(t, all[0].Since.After(first[0].Since.Add(time.Minute)))
	})
}
