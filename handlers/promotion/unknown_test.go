package promotion_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Only a proxy answers the lookups of two payouts. A person who knows the truth ends that.
func TestAPersonEndsLookupsThatOnlyAProxyAnswers(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		var answers atomic.Bool // the Money API is reached
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if answers.Load() {
				_, _ = io.WriteString(w, `{"transactionKey":"tx-api"}`)
				return
			}
			http.Error(w, "gone", http.StatusGone)
		}))
		t.Cleanup(api.Close)
		tw := newTown(t, moneysim.Faults{}, func(c *promotion.Config) { onlyOnce(c); c.MoneyAPI.URL = api.URL })
		for target := range int64(2) {
			require.Equal(t, ledger.Ambiguous, tw.end(target+1, ledger.PerhapsCharged).State)
			require.Equal(t, ledger.Ambiguous, tw.call(pointRecord(target+1), ledger.Unrecognized).State)
		}
		tw.end(3, ledger.Paid)

		var list struct{ Unknown []promotion.UnknownPayout }
		tw.json(&list, "unknown", "list")
		require.Len(t, list.Unknown, 2)
		for _, u := range list.Unknown {
			require.Equal(t, ledger.Ambiguous, u.State)
			require.Equal(t, u.FirstSentAt, u.Since)
			require.Positive(t, u.Age)
		}
		require.Contains(t, tw.says(app.ExitOK, "unknown", "list"), "AMBIGUOUS")
		tw.json(&list, "unknown", "list", "--older-than", "24h")
		require.Empty(t, list.Unknown)
		require.Contains(t, tw.says(app.ExitOK, "campaign", "explain", "POINT", "1", "1"), "millrace unknown resolve POINT 1 1 --force")

		resolve := func(code int, target string, flags ...string) string {
			return tw.says(code, append([]string{"unknown", "resolve", "POINT", "1", target, "--who", "kim", "--why", "ticket 4711"}, flags...)...)
		}
		require.Contains(t, resolve(app.ExitBad, "3", "--paid", "tx", "--force"), "POINT:1:3 is SUCCESS, not UNKNOWN")
		text := resolve(app.ExitBad, "1", "--paid", "tx")
		require.Contains(t, text, "no answer within 300ms", "the evidence is shown")
		require.Contains(t, text, "nothing was changed: POINT:1:1 is AMBIGUOUS and is looked up again")
		require.Contains(t, resolve(app.ExitOK, "1", "--paid", "tx", "--force", "--dry-run"), "POINT:1:1 would be SUCCESS, on the word of kim; nothing was done.")
		answers.Store(true)
		for _, says := range [][]string{{"--unpaid"}, {"--paid", "tx"}} {
			require.Contains(t, resolve(app.ExitBad, "1", append(says, "--force")...), "nothing was changed: the Money API says it is charged, transaction key tx-api")
		}
		require.Contains(t, resolve(app.ExitOK, "1", "--paid", "tx-api", "--force", "--dry-run"), "POINT:1:1 would be SUCCESS, as the Money API says")
		answers.Store(false)
		require.EqualValues(t, 2, tw.counts("POINT").Ambiguous)

		require.Contains(t, resolve(app.ExitOK, "1", "--paid", "tx", "--force"), "POINT:1:1 is SUCCESS now, on the word of kim.")
		require.Contains(t, resolve(app.ExitOK, "2", "--unpaid", "--force"), "POINT:1:2 is FAILED now, on the word of kim.")
		var e promotion.Explained
		tw.json(&e, "campaign", "explain", "POINT", "1", "2")
		require.Contains(t, e.Audit[0].Why, "ticket 4711 (the Money API says: it could not be asked (unrecognized")
		require.Equal(t, ledger.ClassResolved, e.Letters[0].Class)
		require.Contains(t, e.Next, "its dead letter is still on its way; it can be replayed when millrace dead list shows it")
		c := tw.counts("POINT")
		require.Equal(t, []int64{2, 1, 0}, []int64{c.Paid, c.Failed, c.Ambiguous})
	})
}
