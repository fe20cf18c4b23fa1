package promotion_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Only a proxy answers the lookups of two payouts. An operator who has found out the truth ends
// that.
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
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) { onlyOnce(c); c.MoneyAPI.URL = api.URL })
		for target := range int64(2) {
			require.Equal(t, rules.Ambiguous, sys.end(target+1, rules.Unclear).State)
			require.Equal(t, rules.Ambiguous, sys.call(pointRecord(target+1), rules.Unrecognized).State)
		}
		sys.end(3, rules.Done)

		var list struct{ Unknown []campaign.UnknownPayout }
		sys.json(&list, "unknown", "list")
		require.Len(t, list.Unknown, 2)
		for _, u := range list.Unknown {
			require.Equal(t, rules.Ambiguous, u.State)
			require.Equal(t, u.FirstSentAt, u.Since)
			require.Positive(t, u.Age)
		}
		require.Contains(t, sys.says(app.ExitOK, "unknown", "list"), "AMBIGUOUS")
		sys.json(&list, "unknown", "list", "--older-than", "24h")
		require.Empty(t, list.Unknown)
		require.Contains(t, sys.says(app.ExitOK, "campaign", "explain", "POINT", "1", "1"), "millrace unknown resolve POINT 1 1 --force")

		resolve := func(code int, target string, flags ...string) string {
			return sys.says(code, append([]string{"unknown", "resolve", "POINT", "1", target, "--who", "kim", "--why", "ticket 4711"}, flags...)...)
		}
		require.Contains(t, resolve(app.ExitBad, "3", "--paid", "tx", "--force"), "POINT:1:3 is SUCCESS, not UNKNOWN")
		text := resolve(app.ExitBad, "1", "--paid", "tx")
		require.Contains(t, text, "nothing was changed: POINT:1:1 is AMBIGUOUS and is looked up again")
		require.Contains(t, resolve(app.ExitOK, "1", "--paid", "tx", "--force", "--dry-run"), "POINT:1:1 would be SUCCESS, according to you; nothing was changed.")
		answers.Store(true)
		for _, says := range [][]string{{"--unpaid"}, {"--paid", "tx"}} {
			require.Contains(t, resolve(app.ExitBad, "1", append(says, "--force")...), "nothing was changed: the Money API says it is charged, transaction key tx-api")
		}
		require.Contains(t, resolve(app.ExitOK, "1", "--paid", "tx-api", "--force", "--dry-run"), "POINT:1:1 would be SUCCESS, according to the Money API")
		answers.Store(false)
		require.EqualValues(t, 2, sys.counts("POINT").Ambiguous)

		require.Contains(t, resolve(app.ExitOK, "1", "--paid", "tx", "--force"), "POINT:1:1 is SUCCESS now, according to kim.")
		require.Contains(t, resolve(app.ExitOK, "2", "--unpaid", "--force"), "POINT:1:2 is FAILED now, according to kim.")
		var e campaign.Explained
		sys.json(&e, "campaign", "explain", "POINT", "1", "2")
		require.Contains(t, e.Audit[0].Why, "ticket 4711 (the Money API says: no answer (unrecognized")
		require.Equal(t, rules.ClassResolved, e.DeadLetters[0].Class)
		require.Contains(t, e.Next, "its dead letter is not in the store yet; it can be replayed when millrace deadletter list shows it")
		c := sys.counts("POINT")
		require.Equal(t, []int64{2, 1, 0}, []int64{c.Paid, c.Failed, c.Ambiguous})
	})
}

// The README's way for an UNKNOWN payout: list, evidence, resolve.
func TestUnknownIsResolvedByAnOperator(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, onlyOnce)
		require.Contains(t, sys.says(app.ExitOK, "unknown", "list"), "No payout is UNKNOWN, and none is AMBIGUOUS that can only be looked up.")
		require.Equal(t, "No promotion has unsettled payouts, and none is paused.\n", sys.says(app.ExitOK, "campaign", "status"))
		for target := range int64(3) {
			sys.unknown(target + 1)
		}
		early := sys.says(app.ExitBad, "unknown", "resolve", "POINT", "1", "3", "--unpaid", "--why", "asked", "--who", "kim")
		require.Contains(t, early, "was sent less than a lease ago")
		tx := sys.charge(pointRecord(1), pointRecord(1).Payload)
		require.Contains(t, sys.says(app.ExitOK, "campaign", "status"), "UNKNOWN payouts, an operator decides: 3 (millrace unknown list)")
		var list struct {
			Unknown []campaign.UnknownPayout
			More    bool
		}
		sys.json(&list, "unknown", "list")
		require.Len(t, list.Unknown, 3)
		require.False(t, list.More)
		require.Equal(t, "timeout", list.Unknown[0].Class)
		sys.json(&list, "unknown", "list", "--type", "POINT", "--promotion", "1", "--limit", "2")
		require.Len(t, list.Unknown, 2)
		require.True(t, list.More)
		for _, none := range [][]string{{"--type", "voucher"}, {"--promotion", "2"}, {"--older-than", "1h"}} {
			sys.json(&list, append([]string{"unknown", "list"}, none...)...)
			require.Empty(t, list.Unknown, none)
			require.Equal(t, "No such payout matches.\n", sys.says(app.ExitOK, append([]string{"unknown", "list"}, none...)...))
		}
		sys.says(app.ExitUsage, "unknown", "list", "--type", "COIN")

		resolve := func(code int, target string, flags ...string) string {
			return sys.says(code, append([]string{"unknown", "resolve", "POINT", "1", target}, flags...)...)
		}
		resolve(app.ExitUsage, "1", "--why", "seen")
		resolve(app.ExitUsage, "1", "--why", "seen", "--unpaid", "--paid", "x")
		resolve(app.ExitUsage, "1", "--unpaid")
		require.Contains(t, resolve(app.ExitBad, "1", "--unpaid", "--why", "a guess"), "says it is charged, transaction key "+tx)
		require.Contains(t, resolve(app.ExitBad, "1", "--paid", "another", "--why", "a guess"), "not another")
		require.Contains(t, resolve(app.ExitBad, "2", "--paid", "seen", "--why", "a guess"), "--force")
		require.EqualValues(t, 3, sys.counts("POINT").Unknown, "nothing was changed")

		text := resolve(app.ExitOK, "1", "--paid", tx, "--why", "in their book", "--who", "kim")
		require.Contains(t, text, "no answer within 300ms", "the evidence is shown")
		require.Contains(t, text, "POINT:1:1 is SUCCESS now, according to the Money API.")
		text = resolve(app.ExitOK, "2", "--unpaid", "--force", "--why", "ticket 4711", "--who", "kim")
		require.Contains(t, text, "The Money API says: no charge with this key, which is no proof.")
		require.Contains(t, text, "POINT:1:2 is FAILED now, according to kim.")
		var after campaign.Explained
		sys.json(&after, "unknown", "resolve", "POINT", "1", "3", "--paid", "elsewhere", "--why", "bank statement", "--who", "kim", "--force")
		require.Equal(t, rules.Success, after.State)
		require.Contains(t, after.Next, "Its dead letter is not in the store yet: discard it when millrace deadletter list shows it.")
		require.Contains(t, resolve(app.ExitBad, "2", "--unpaid", "--why", "again"), "FAILED, not UNKNOWN")

		var e campaign.Explained
		sys.json(&e, "campaign", "explain", "POINT", "1", "2")
		require.Len(t, e.Audit, 1)
		require.Equal(t, "kim", e.Audit[0].Who)
		require.Equal(t, "ticket 4711 (the Money API says: no charge with this key, which is no proof)", e.Audit[0].Why)
		require.Contains(t, e.Next, "its dead letter is not in the store yet", "no instance runs that publishes it")
		require.Equal(t, "No promotion has unsettled payouts, and none is paused.\nFAILED payouts, not charged and not retried: 1 (millrace deadletter list)\n", sys.says(app.ExitOK, "campaign", "status"))
		c := sys.counts("POINT")
		require.Equal(t, []int64{2, 1, 0}, []int64{c.Paid, c.Failed, c.Unknown})
	})
}

// Resolving an UNKNOWN payout as paid discards its dead letter, so that it can't be replayed. Other
// dead letters stay.
func TestResolvingDiscardsTheDeadLetter(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, onlyOnce)
		for target := range int64(2) {
			sys.unknown(target + 1)
		}
		rival := pointRecord(1)
		rival.Payload = []byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":1,"amount":999}`)
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{rival}, ledger.AcceptOptions{})[0].Err)
		tx := sys.charge(pointRecord(1), pointRecord(1).Payload)
		// The service copies the dead letters into the store. The commands run later.
		stop := pipelinetest.StartUntil(t, middleware.Options{}, sys.all...)
		require.Eventually(t, func() bool {
			for k, n := range map[payouts.Key]int{pointRecord(1).Key: 2, pointRecord(2).Key: 1} {
				x, err := sys.ledger.Explain(t.Context(), k)
				if err != nil || len(x.DeadLetters) != n || slices.ContainsFunc(x.DeadLetters, func(l ledger.DeadLetter) bool { return l.PublishedAt.IsZero() }) {
					return false
				}
			}
			return true
		}, 2*time.Minute, 20*time.Millisecond)
		require.NoError(t, stop())

		explain := func(target string, flags ...string) (e campaign.Explained) {
			sys.json(&e, append([]string{"campaign", "explain", "POINT", "1", target}, flags...)...)
			return e
		}
		e := explain("1", "--query-api")
		require.True(t, e.DeadLetters[0].Waits() && e.DeadLetters[1].Waits())
		require.Contains(t, e.Next, "unknown resolve POINT 1 1 --paid "+tx)
		own, other := e.DeadLetters[0], e.DeadLetters[1]
		require.Equal(t, []string{"unknown", "conflict"}, []string{own.Class, other.Class})
		require.Contains(t, e.Next, "A second request for it waits as dead letter "+other.Name)
		text := sys.says(app.ExitOK, "campaign", "explain", "POINT", "1", "1")
		require.Contains(t, text, "offered "+string(rival.Payload))
		require.Contains(t, text, own.Name+"  open ")

		resolve := func(code int, target string, flags ...string) string {
			return sys.says(code, append([]string{"unknown", "resolve", "POINT", "1", target, "--who", "kim", "--why", "asked"}, flags...)...)
		}
		require.Contains(t, resolve(app.ExitOK, "1", "--paid", tx, "--dry-run"), "POINT:1:1 would be SUCCESS, according to the Money API; nothing was changed.")
		require.Contains(t, resolve(app.ExitBad, "1", "--unpaid", "--dry-run"), "nothing was changed: the Money API says it is charged")
		require.EqualValues(t, 2, sys.counts("POINT").Unknown)
		text = resolve(app.ExitOK, "1", "--paid", tx)
		require.Contains(t, text, "POINT:1:1 is SUCCESS now, according to the Money API.\nIts dead letter "+own.Name+" is discarded.\nNext: nothing. It is paid.")
		e = explain("1")
		require.Equal(t, []store.State{store.Discarded, store.Open}, []store.State{e.DeadLetters[0].State, e.DeadLetters[1].State}, "the rival's waits for its own decision")

		unpaid := explain("2").DeadLetters[0].Name
		require.Contains(t, resolve(app.ExitOK, "2", "--unpaid", "--force"), "millrace deadletter replay "+unpaid)
		require.Equal(t, store.Open, explain("2").DeadLetters[0].State)
	})
}

func TestUnknownIsResolvedWithoutTheMoneyAPI(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{Unauthorized: true}, onlyOnce)
		sys.unknown(1)
		unpaid := []string{"unknown", "resolve", "POINT", "1", "1", "--unpaid", "--why", "they said so", "--who", "kim"}
		require.Contains(t, sys.says(app.ExitBad, unpaid...), "nothing was changed: the Money API did not answer that it has no charge: no answer")
		require.EqualValues(t, 1, sys.counts("POINT").Unknown)
		sys.says(app.ExitOK, append(unpaid, "--force")...)
		require.EqualValues(t, 1, sys.counts("POINT").Failed)
	})
}

// An API that removes old keys answers no_charge for all of them. The operator needs other
// evidence.
func TestNoChargeOfAnOldKeyProvesNothing(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			c.MoneyAPI.CallTimeout, c.MoneyAPI.LeaseMargin, c.Ledger.IdempotencyTTL = 4*time.Second, time.Millisecond, 4002*time.Millisecond
			onlyOnce(c)
		})
		sys.unknown(1)
		require.Eventually(t, func() bool {
			x, err := sys.ledger.Explain(t.Context(), pointRecord(1).Key)
			return err == nil && x.KeyAge(x.Now) > sys.payouts.Settings().(*promotion.Config).Ledger.IdempotencyTTL
		}, 2*time.Minute, 10*time.Millisecond)
		resolve := []string{"unknown", "resolve", "POINT", "1", "1", "--unpaid", "--why", "asked", "--who", "kim"}
		text := sys.says(app.ExitBad, resolve...)
		require.Contains(t, text, "an API that removes old keys always answers so")
		require.Contains(t, text, "--force records it")
		require.EqualValues(t, 1, sys.counts("POINT").Unknown)
		require.Contains(t, sys.says(app.ExitOK, append(resolve, "--force")...), "POINT:1:1 is FAILED now, according to kim.")
	})
}

func TestUnpaidWaitsForARequestInFlight(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"code":"in_flight","message":"a request with this key is being worked on"}`)
		}))
		t.Cleanup(api.Close)
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) { onlyOnce(c); c.MoneyAPI.URL = api.URL })
		sys.unknown(1)
		text := sys.says(app.ExitBad, "unknown", "resolve", "POINT", "1", "1", "--unpaid", "--why", "asked", "--who", "kim")
		require.Contains(t, text, "a request is in flight; try again later")
		require.EqualValues(t, 1, sys.counts("POINT").Unknown)
	})
}
