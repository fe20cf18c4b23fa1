package promotion

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// Whatever a Money API, a producer or an operator wrote, explain shows no character that a terminal obeys.
func TestExplainShowsNothingThatATerminalObeys(t *testing.T) {
	t.Parallel()
	const nasty = "x\x1b]0;title\x07\u009b2J\nNext: nothing.\t\u202egnp"
	e := Explained{Key: "POINT:1:7", State: ledger.Unknown, Origin: nasty, Record: nasty, Request: nasty + "2", TransactionKey: nasty, Next: nasty,
		Calls:    []ledger.Attempt{{Instance: nasty, Class: nasty, Answer: nasty}},
		Letters:  []ExplainedLetter{{Letter: ledger.Letter{Class: nasty, Error: nasty, Rival: nasty}, Name: "l1", State: letters.Open}},
		Audit:    []ledger.Audit{{Who: nasty, Why: nasty, Action: "resolve", Detail: nasty}},
		MoneyAPI: &lookup{Answer: "paid", TransactionKey: nasty}}
	var out strings.Builder
	require.NoError(t, writeExplained(&out, e))
	require.Contains(t, out.String(), "gnp")
	for _, r := range out.String() {
		require.False(t, r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r), "%q in %q", r, out.String())
	}
	require.NotContains(t, out.String(), "\nNext: nothing.", "nor a line that looks like ours")
}

// A spreadsheet that opens the file of a reconciliation runs nothing.
func TestTheTableHasNoFormulas(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "differing.csv")
	table, err := newTable(reconcileFlags{csv: path, all: true}, ledger.Promotion{Type: "POINT", ID: 1})
	require.NoError(t, err)
	row := rowOf(1, 500, ledger.Success)
	row.TransactionKey, row.LastClass, row.Origin = `=HYPERLINK("http://x")`, "@class", "-origin"
	require.NoError(t, table.write(joined{target: 1, row: &row}, []bucket{bucketMissing}))
	require.NoError(t, table.close())
	f, err := os.Open(path)
	require.NoError(t, err)
	lines, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for _, cell := range lines[1] {
		require.NotRegexp(t, `^[=+@\t\r-]`, cell)
	}
}
