package effects_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// reconciled compares the group acme with a book.
func (w *world) reconciled(t *testing.T, book string) *reconcile.Report {
	t.Helper()
	path := filepath.Join(t.TempDir(), "book.csv")
	require.NoError(t, os.WriteFile(path, []byte(book), 0o600))
	for _, r := range w.Once.Operations().Reports {
		if r.Name == "once reconcile" {
			a, err := r.Read(t.Context(), nil, operate.Input{"kind": {"invoice"}, "group": {"acme"}, "book": {path}, "lag": {"0s"}})
			require.NoError(t, err)
			return a.Value.(*reconcile.Report)
		}
	}
	require.Fail(t, "there is no such command")
	return nil
}

// The sums of a kind of settings are compared with the book of the API. What was accepted before the kind had sums is
// done all the same, and has one only if its record does.
func TestTheSumsOfAKindOfSettings(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		api := newFar(t, true)
		older := newWorld(t, dsn)
		older.start(t, invoices, dsn, api)
		const odd = `{"invoice":{"customer":"acme","number":"odd","cents":"12.00"}}`
		older.send(t, "invoices", odd)
		require.Equal(t, rules.Success, older.settled(t, "invoice", odd).State)

		w := newWorld(t, dsn)
		w.start(t, strings.Replace(invoices, "        request:", "        sum: invoice.cents\n        request:", 1), dsn, api)
		for number, cents := range map[string]string{"1": "1200", "2": "0", "3": "-5"} {
			payload := fmt.Sprintf(`{"invoice":{"customer":"acme","number":%s,"cents":%s}}`, number, cents)
			w.send(t, "invoices", payload)
			require.Equal(t, rules.Success, w.settled(t, "invoice", payload).State)
		}
		r := w.reconciled(t, "id,sum\n1,1200\n2,0\n3,-5\nodd,1\n")
		require.True(t, r.Balanced, "%+v", r)
		require.EqualValues(t, 1195, r.DoneSum, "without the one that has no sum")
		r = w.reconciled(t, "id,sum\n1,1201\n2,0\n3,-5\nodd,1\n")
		require.False(t, r.Balanced)
		require.Equal(t, []int64{3, 1}, []int64{r.Buckets[reconcile.Matched], r.Buckets[reconcile.SumDiffers]})
		require.Equal(t, []string{"1"}, r.Examples[reconcile.SumDiffers])
	})
}

// A record whose sum can't be compared is refused, instead of being left out by a comparison later.
func TestARecordWithoutASumIsRefused(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	w := newWorld(t, dsn)
	w.start(t, strings.Replace(invoices, "        request:", "        sum: invoice.cents\n        request:", 1), dsn, api)
	for cents, want := range map[string]string{
		`"x":1`:                         "sum: the record has no invoice.cents",
		`"cents":null`:                  "sum: invoice.cents is null",
		`"cents":"1200"`:                "sum: invoice.cents is a text: expected a whole number",
		`"cents":12.0`:                  "sum: invoice.cents is a number with a fraction or an exponent: expected a whole number",
		`"cents":1e3`:                   "sum: invoice.cents is a number with a fraction or an exponent: expected a whole number",
		`"cents":{}`:                    "sum: invoice.cents is an object: expected a whole number",
		`"cents":9223372036854775808`:   "sum: invoice.cents has more than 64 bits",
		`"cents":-99999999999999999999`: "sum: invoice.cents has more than 64 bits",
	} {
		_, err := w.Once.Ask(t.Context(), "invoice", once.Ask{Payload: fmt.Appendf(nil, `{"invoice":{"customer":"acme","number":1,%s}}`, cents)})
		require.ErrorContains(t, err, want)
	}
	require.Empty(t, api.requests("POST", "/billing/v1/invoices"))
}
