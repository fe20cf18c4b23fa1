package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// An instance that runs learns of a recovery when it looks for work, and without work when it is told to ask.
func TestAnInstanceThatRunsLearnsOfARecovery(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		command, claims, accepts := h.open(t), h.open(t, as("b")), h.open(t, as("c"))
		mustAccept(t, claims, record("acme", 1))
		since := command.clock(t).Add(-time.Minute)
		expected, err := command.Recovered(t.Context(), "invoice", since)
		require.NoError(t, err)
		require.EqualValues(t, 1, expected.Open)
		h.advance(time.Second)
		r, err := command.Recover(t.Context(), "invoice", since, operator)
		require.NoError(t, err)
		require.True(t, r.Until.After(expected.Until))
		require.NotNil(t, mustExplain(t, command, key("acme", 1)).Lost)

		claimed := claimAll(t, claims, "invoice")
		require.Len(t, claimed, 1)
		require.True(t, claimed[0].Lookup)
		mustSettle(t, claims, end(claimed[0], rules.NotDone))
		require.Nil(t, mustExplain(t, claims, key("acme", 1)).Lost, "it was looked up since")

		require.NoError(t, accepts.LearnLost(t.Context(), "invoice"))
		again := record("acme", 2)
		again.Published = r.Until.Add(-time.Millisecond)
		mustAccept(t, accepts, again, record("acme", 3))
		x := mustExplain(t, command, key("acme", 2))
		require.Equal(t, rules.Ambiguous, x.Row.State)
		require.True(t, x.Row.MaybeDone && x.Row.LookingUp)
		require.WithinDuration(t, since, x.Row.FirstSentAt, time.Microsecond)
		require.Equal(t, rules.Pending, mustExplain(t, command, key("acme", 3)).Row.State)

		c, err := h.open(t).Cancel(t.Context(), Group{"invoice", "acme"}, operator)
		require.NoError(t, err)
		require.EqualValues(t, 1, c.Cancelled, "the last one")

		mustAccept(t, command, record("omega", 1))
		_, err = command.Recover(t.Context(), "invoice", since, operator)
		require.NoError(t, err)
		c, err = claims.Cancel(t.Context(), Group{"invoice", "omega"}, operator)
		require.NoError(t, err)
		require.Zero(t, c.Cancelled, "it may be done")
		var lookups []Key
		for _, c := range claimAll(t, claims, "invoice") {
			require.True(t, c.Lookup, c.Key)
			lookups = append(lookups, c.Key)
		}
		require.Subset(t, lookups, []Key{key("omega", 1), key("acme", 2)}, "the first one waits for its next lookup, or has it too")

		_, err = command.Recover(t.Context(), "invoice", command.clock(t).Add(time.Hour), operator)
		require.ErrorIs(t, err, ErrInvalid)
		_, err = command.Recover(t.Context(), "nothing", since, operator)
		require.ErrorIs(t, err, ErrNotFound)
		_, err = command.Recover(t.Context(), "invoice", since, By{Who: "ann"})
		require.ErrorContains(t, err, "the audit needs why")
	})
}
