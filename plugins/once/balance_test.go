package once

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// Totals that do not add up are a failure that names the difference.
func TestBalanceOf(t *testing.T) {
	t.Parallel()
	s := ledger.Status{Totals: ledger.Totals{Accepted: 21, Done: 1, Failed: 2, Unknown: 3, Cancelled: 4}, Waiting: 5, Calling: 6}
	require.Equal(t, operate.Check{Name: "balance", Level: operate.OK, Text: "accepted 21 = ended 10 + open 11"}, balanceOf(s))
	s.Accepted++
	require.Equal(t, operate.Check{
		Name: "balance", Level: operate.Fail, Text: "accepted 22, but ended 10 + open 11 = 21: the totals of the ledger are wrong",
	}, balanceOf(s))
}
