package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

var acme = Group{Kind: "invoice", Name: "acme"}

func TestAnEffectIsAcceptedCalledAndDone(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		r := record("acme", 1)
		r.Request = []byte("the request")
		require.Equal(t, []Accepted{Fresh}, mustAccept(t, l, r))
		s := mustStatus(t, l, acme)
		require.Equal(t, int64(1), s.Waiting, "also before a claim")

		claimed := claimAll(t, l, "invoice")
		require.Equal(t, []Claimed{{Key: r.Key, Epoch: 1, Number: 1, Payload: r.Payload, Request: r.Request, Headers: r.Headers}}, claimed)
		require.Empty(t, claimAll(t, l, "invoice"), "under a lease")
		s = mustStatus(t, l, acme)
		require.Equal(t, []int64{0, 1}, []int64{s.Waiting, s.Calling})
		due, err := l.Due(t.Context(), "invoice")
		require.NoError(t, err)
		require.Empty(t, due.Lanes)
		require.Greater(t, due.Next, time.Second)
		require.LessOrEqual(t, due.Next, 8*time.Second)

		require.Equal(t, []Settled{{State: rules.Success}}, mustSettle(t, l, end(claimed[0], rules.Done)))
		require.Equal(t, []Settled{{State: rules.Success}}, mustSettle(t, l, end(claimed[0], rules.Done)), "repeated")
		due, err = l.Due(t.Context(), "invoice")
		require.NoError(t, err)
		require.Equal(t, nothingDue, due)
		for range 2 {
			s = mustStatus(t, l, acme)
			require.Equal(t, Totals{Accepted: 1, Done: 1}, s.Totals)
			require.Zero(t, s.Waiting+s.Calling)
			require.NoError(t, l.Sweep(t.Context()))
		}
		x := mustExplain(t, l, r.Key)
		require.Equal(t, "r-n1", x.Row.Receipt)
		require.Equal(t, []byte("the request"), x.Request)
		require.Len(t, x.Calls, 1)
		require.Equal(t, rules.Done, x.Calls[0].Outcome)
		require.Equal(t, 200, x.Calls[0].Status)
	})
}
