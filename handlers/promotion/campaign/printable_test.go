package campaign

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Texts of a Money API, a producer or an operator are shown without control characters.
func TestExplainShowsNoControlCharacters(t *testing.T) {
	t.Parallel()
	const nasty = "x\x1b]0;title\x07\u009b2J\nNext: nothing.\t\u202egnp"
	e := Explained{Key: "POINT:1:7", State: rules.Unknown, Origin: nasty, Record: nasty, Request: nasty + "2", TransactionKey: nasty, Next: nasty,
		Calls:       []payouts.Attempt{{Instance: nasty, Class: nasty, Answer: nasty}},
		DeadLetters: []ExplainedDeadLetter{{DeadLetter: ledger.DeadLetter{Class: nasty, Error: nasty, Offered: nasty}, Name: "l1", State: store.Open}},
		Audit:       []ledger.Audit{{Who: nasty, Why: nasty, Action: "resolve", Detail: nasty}},
		MoneyAPI:    &lookup{Answer: "paid", TransactionKey: nasty}}
	var out strings.Builder
	require.NoError(t, e.Write(&out))
	require.Contains(t, out.String(), "gnp")
	for _, r := range out.String() {
		require.False(t, r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r), "%q in %q", r, out.String())
	}
	require.NotContains(t, out.String(), "\nNext: nothing.", "nor a line that looks like ours")
}
