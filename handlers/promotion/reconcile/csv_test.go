package reconcile

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func TestTable(t *testing.T) {
	t.Parallel()
	s := sources{records: []string{recordOf(1, 1, 500), recordOf(1, 2, 500)}, charges: []Charge{chargeOf(1, 500, 1), chargeOf(2, 501, 1)},
		rows: []ledger.Payout{rowOf(1, 500, rules.Success), rowOf(2, 500, rules.Success)}}
	for _, all := range []bool{false, true} {
		table := &Table{Path: filepath.Join(t.TempDir(), "differing.csv"), Promotion: payouts.Promotion{Type: "POINT", ID: 1}, All: all, Kafka: true, MoneyAPI: true}
		require.NoError(t, table.Check())
		_, err := Compare(t.Context(), s.input(time.Time{}.Add(time.Hour), table.Write))
		require.NoError(t, err)
		require.NoError(t, table.Close())
		f, err := os.Open(table.Path)
		require.NoError(t, err)
		lines, err := csv.NewReader(f).ReadAll()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		want := [][]string{columns(), {"POINT", "1", "2", "amount_differs", "SUCCESS", "0", "", "", "1", "500", "500", "1", "501", "3@1", "kafka t/0@7"}}
		if all {
			want = slices.Insert(want, 1, []string{"POINT", "1", "1", "matched", "SUCCESS", "0", "", "", "1", "500", "500", "1", "500", "3@0", "kafka t/0@7"})
		}
		require.Equal(t, want, lines)
	}
}

// A spreadsheet that opens the file of a reconciliation runs nothing.
func TestTheTableHasNoFormulas(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "differing.csv")
	table := &Table{Path: path, Promotion: payouts.Promotion{Type: "POINT", ID: 1}, All: true}
	row := rowOf(1, 500, rules.Success)
	row.Receipt, row.LastClass, row.Origin = `=HYPERLINK("http://x")`, "@class", "-origin"
	require.NoError(t, table.Write(Target{ID: 1, Row: &row}, []Bucket{PaidNotCharged}))
	require.NoError(t, table.Close())
	f, err := os.Open(path)
	require.NoError(t, err)
	lines, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for _, cell := range lines[1] {
		require.NotRegexp(t, `^[=+@\t\r-]`, cell)
	}
}
