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
