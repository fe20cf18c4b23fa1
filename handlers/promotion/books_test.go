package promotion

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
)

// Each way in which the books can differ must be seen: a verdict that is always good proves nothing.
func TestBooksThatDoNotBalance(t *testing.T) {
	t.Parallel()
	good := []charge{{target: 1, value: 500, executions: 1}}
	for _, tt := range []struct {
		name    string
		state   ledger.State
		charges []charge
		balance bool
	}{
		{"paid and charged once", ledger.Success, good, true},
		{"failed and not charged", ledger.Failed, nil, true},
		{"cancelled and not charged", ledger.Cancelled, nil, true},
		{"paid and not in the book", ledger.Success, nil, false},
		{"charged twice", ledger.Success, []charge{{1, 500, 2}}, false},
		{"another amount", ledger.Success, []charge{{1, 501, 1}}, false},
		{"charged and failed", ledger.Failed, good, false},
		{"charged and cancelled", ledger.Cancelled, good, false},
		{"charged and not settled", ledger.Sending, good, false},
		{"not settled", ledger.Pending, nil, false},
		{"unknown", ledger.Unknown, nil, false},
		{"a charge that nobody accepted", ledger.Success, append([]charge{{2, 5, 1}}, good...), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b Books
			lines, err := readBook(func(yield func(charge, error) bool) {
				for _, c := range tt.charges {
					if !yield(c, nil) {
						return
					}
				}
			}, &b)
			require.NoError(t, err)
			row := ledger.Entry{Row: ledger.Row{Key: ledger.Key{Type: "POINT", Promotion: 1, Target: 1}, State: tt.state},
				Request: []byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":1,"amount":500}`)}
			require.NoError(t, b.row(pointStrategy(), lines, row))
			b.Unexplained += int64(len(lines))
			require.Equal(t, tt.balance, b.Balance(), "%+v", b)
		})
	}
}
