package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func TestTotalsAreOverAllPromotions(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		none, err := l.Totals(t.Context())
		require.NoError(t, err)
		require.Empty(t, none)

		payMany(t, l, 1, 3)
		payMany(t, l, 2, 4)
		mustAccept(t, l, record(2, 100))
		refused := mustBegin(t, l, record(2, 100))
		mustSettle(t, l, payouts.CallResult{Key: key(2, 100), CallResult: rules.CallResult{Epoch: refused.Epoch, Outcome: rules.Rejected}})
		mustAccept(t, l, record(3, 1)) // pending: not among them
		voucher := record(1, 1)
		voucher.Type = "VOUCHER"
		mustAccept(t, l, voucher)
		_, err = l.Cancel(t.Context(), payouts.Promotion{Type: "VOUCHER", ID: 1}, operator)
		require.NoError(t, err)

		all, err := l.Totals(t.Context())
		require.NoError(t, err)
		require.Equal(t, []Totals{{Type: "POINT", Paid: 7, Failed: 1}, {Type: "VOUCHER", Cancelled: 1}}, all)
	})
}
