package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A group is finished when all effects that were expected are accepted, and all that were accepted are settled. Nothing else
// depends on its size.
func TestSizeOfAGroup(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l, other := h.open(t), h.open(t, as("b"))
		status := func(want Totals, expected int64, finished bool) {
			t.Helper()
			s := mustStatus(t, other, acme)
			require.Equal(t, []any{want, expected, finished}, []any{s.Totals, s.Expected, s.Finished()})
			groups, _, err := l.Groups(t.Context(), "invoice", Group{}, 10)
			require.NoError(t, err)
			require.Equal(t, []any{expected, finished}, []any{groups[0].Expected, groups[0].Finished()})
		}
		require.NoError(t, l.Expect(t.Context(), acme, 3))
		status(Totals{}, 3, false)
		mustAccept(t, l, records("acme", 2)...)
		claimed := claimAll(t, l, "invoice")
		require.Len(t, claimed, 2)
		mustSettle(t, l, end(claimed[0], rules.Done))
		status(Totals{Accepted: 2, Done: 1}, 3, false)
		mustSettle(t, l, end(claimed[1], rules.Done))
		require.NoError(t, l.Sweep(t.Context()))
		status(Totals{Accepted: 2, Done: 2}, 3, false)
		mustAccept(t, l, record("acme", 2))
		status(Totals{Accepted: 3, Done: 2}, 3, false)
		mustSettle(t, l, end(claimAll(t, l, "invoice")[0], rules.Rejected))
		status(Totals{Accepted: 3, Done: 2, Failed: 1}, 3, true)

		require.NoError(t, other.Expect(t.Context(), acme, 3), "each instance may say it")
		require.NoError(t, other.Expect(t.Context(), acme, 0), "nothing")
		status(Totals{Accepted: 3, Done: 2, Failed: 1}, 3, true)
		require.NoError(t, l.Replay(t.Context(), key("acme", 2), operator))
		status(Totals{Accepted: 3, Done: 2}, 3, false)
		h.advance(time.Minute)
		mustSettle(t, l, end(claimAll(t, l, "invoice")[0], rules.Done))
		require.NoError(t, other.Expect(t.Context(), acme, 4))
		status(Totals{Accepted: 3, Done: 3}, 4, false)
		require.NoError(t, l.Pause(t.Context(), acme, operator))
		require.NoError(t, l.Resume(t.Context(), acme, operator))
		status(Totals{Accepted: 3, Done: 3}, 4, false)
		require.NoError(t, l.Expect(t.Context(), acme, 2))
		status(Totals{Accepted: 3, Done: 3}, 2, true)

		mail := record("acme", 1)
		mail.Kind = "mail"
		mustAccept(t, l, mail)
		require.Zero(t, mustStatus(t, l, mail.of()).Expected, "it is of another kind")
		require.ErrorIs(t, l.Expect(t.Context(), Group{"nothing", "acme"}, 3), ErrNotFound)
		require.ErrorIs(t, l.Expect(t.Context(), Group{"invoice", ""}, 3), ErrInvalid)
		require.ErrorIs(t, l.Expect(t.Context(), acme, -1), ErrInvalid)
		_, err := l.Status(t.Context(), Group{"invoice", "nobody"})
		require.ErrorIs(t, err, ErrNotFound)
	})
}
