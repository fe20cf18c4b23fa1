package ledger

import (
	"github.com/stretchr/testify/require"
	"testing"
)

func TestSmoke(t *testing.T) {
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t)
		require.Equal(t, Enqueue, mustAccept(t, l, record(1, 2)).Next)
		b := mustBegin(t, l, record(1, 2))
		require.Equal(t, Send, b.Next)
		s := mustSettle(t, l, Result{Key: key(1, 2), Epoch: b.Epoch, Outcome: Paid, TransactionKey: "x"})
		require.Equal(t, Success, s.State)
		t.Logf("%+v", mustExplain(t, l, key(1, 2)))
		c, err := l.Status(t.Context(), Promotion{"POINT", 1})
		require.NoError(t, err)
		t.Logf("%+v", c)
	})
}
