package promotion_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// command runs the binary's command line in this process, against the town's servers.
func (tw *town) command(args ...string) (stdout, stderr string, code int) {
	tw.t.Helper()
	config := filepath.Join(tw.t.TempDir(), "config.yaml")
	require.NoError(tw.t, os.WriteFile(config, []byte("log: {level: error}\n"), 0o600))
	var out, errs bytes.Buffer
	code = app.Main(tw.t.Context(), app.Options{Name: "millrace", Plugins: tw.all, Stdout: &out, Stderr: &errs,
		Args: append(args, "--config", config), Environ: []string{}})
	return out.String(), errs.String(), code
}

// says runs a command that must end with code, and returns what it wrote.
func (tw *town) says(code int, args ...string) string {
	tw.t.Helper()
	stdout, stderr, got := tw.command(args...)
	require.Equal(tw.t, code, got, "%v: %s%s", args, stdout, stderr)
	return stdout + stderr
}

func (tw *town) json(to any, args ...string) {
	tw.t.Helper()
	stdout, stderr, code := tw.command(append(args, "--json")...)
	require.Zero(tw.t, code, "%v: %s%s", args, stdout, stderr)
	require.NoError(tw.t, json.Unmarshal([]byte(stdout), to), stdout)
}

func pointRecord(target int64) ledger.Record {
	payload := fmt.Appendf(nil, `{"promotionId":1,"promotionSummaryId":9,"targetId":%d,"amount":%d}`, target, 10*target)
	return ledger.Record{Key: ledger.Key{Type: "POINT", Promotion: 1, Target: target}, SummaryID: 9, Payload: payload,
		RecordKey: strconv.AppendInt(nil, target, 10), Origin: "kafka campaign-promotion-point-publish/0@" + strconv.FormatInt(target, 10), Handler: "promotion.point.stream"}
}

// end accepts a payout and ends its first call in that way.
func (tw *town) end(target int64, o ledger.Outcome) ledger.Settled {
	tw.t.Helper()
	r := pointRecord(target)
	_, err := tw.ledger.Accept(tw.t.Context(), r, false)
	require.NoError(tw.t, err)
	return tw.call(r, o)
}

func (tw *town) call(r ledger.Record, o ledger.Outcome) ledger.Settled {
	tw.t.Helper()
	b, err := tw.ledger.Begin(tw.t.Context(), r)
	require.NoError(tw.t, err)
	require.Contains(tw.t, []ledger.Next{ledger.Send, ledger.Ask}, b.Next)
	s, err := tw.ledger.Settle(tw.t.Context(), ledger.Result{Key: r.Key, Epoch: b.Epoch, Outcome: o, TransactionKey: "tx-" + r.Key.String(),
		Class: "timeout", Answer: "no answer within 300ms", Handler: r.Handler})
	require.NoError(tw.t, err)
	return s
}

// unknown ends a payout as UNKNOWN: with onlyOnce its only send and its only lookup show nothing.
func (tw *town) unknown(target int64) {
	tw.end(target, ledger.PerhapsCharged)
	require.Equal(tw.t, ledger.Unknown, tw.call(pointRecord(target), ledger.Rejected).State)
}

// charge asks the simulated Money API for the charge itself.
func (tw *town) charge(r ledger.Record, body []byte) (transactionKey string) {
	tw.t.Helper()
	cfg := money.DefaultConfig()
	cfg.URL = tw.api.URL()
	api, err := money.New(cfg, nil)
	require.NoError(tw.t, err)
	defer func() { require.NoError(tw.t, api.Close()) }()
	a := api.Charge(tw.t.Context(), money.Charge{Operation: money.ChargePoint, Key: r.Key.String(), Body: body})
	require.Equal(tw.t, money.Paid, a.Class, a.Text)
	return a.TransactionKey
}

// onlyOnce leaves one send and one lookup, and no wait between them.
func onlyOnce(c *promotion.Config) {
	c.Ledger.MaxRetries, c.Ledger.Retry = 0, pipeline.Backoff{First: 1, Max: 1}
}

func TestExplain(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, nil)
		tw.end(7, ledger.PerhapsCharged)
		text := tw.says(app.ExitOK, "campaign", "explain", "point", "1", "7")
		for _, part := range []string{"POINT:1:7 ", "AMBIGUOUS", "campaign-promotion-point-publish/0@7", `"amount":70`, "send 1", "perhaps_charged", "no answer within 300ms",
			"its retry record is due", "The request is sent with the key POINT:1:7 again"} {
			require.Contains(t, text, part)
		}
		require.Contains(t, tw.says(app.ExitBad, "campaign", "explain", "POINT", "1", "8"), "it was never accepted")
		tw.says(app.ExitUsage, "campaign", "explain", "POINT", "1", "-8")
		tw.says(app.ExitUsage, "campaign", "explain", "COIN", "1", "8")
		_, said, code := tw.command("campaign", "explain", "POINT")
		require.Equal(t, app.ExitUsage, code)
		require.Contains(t, said, "wants TYPE PROMOTION TARGET, as in POINT 12345 777; got 1 arguments")
		require.Contains(t, tw.says(app.ExitBad, "campaign", "status", "VOUCHER", "1"), "is it another type (POINT, VOUCHER), or another number?")

		var e promotion.Explained
		tw.json(&e, "campaign", "explain", "POINT", "1", "7", "--ask")
		require.Equal(t, ledger.Ambiguous, e.State)
		require.Equal(t, "POINT:1:7", e.Key)
		require.Len(t, e.Calls, 1)
		require.True(t, e.MaybeCharged)
		require.Equal(t, "no_charge", e.MoneyAPI.Answer)
		require.Empty(t, e.Audit)
	})
}

// The README's way for an UNKNOWN payout: list, evidence, resolve.
func TestUnknownIsResolvedByAPerson(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, onlyOnce)
		require.Contains(t, tw.says(app.ExitOK, "unknown", "list"), "No payout is UNKNOWN.")
		require.Equal(t, "No promotion is unfinished or paused.\n", tw.says(app.ExitOK, "campaign", "status"))
		for target := range int64(3) {
			tw.unknown(target + 1)
		}
		early := tw.says(app.ExitBad, "unknown", "resolve", "POINT", "1", "3", "--unpaid", "--why", "asked", "--who", "kim")
		require.Contains(t, early, "was sent less than a lease ago")
		tx := tw.charge(pointRecord(1), pointRecord(1).Payload)
		require.Contains(t, tw.says(app.ExitOK, "campaign", "status"), "UNKNOWN payouts, for a person to find out: 3 (millrace unknown list)")
		var list struct {
			Unknown []promotion.UnknownPayout
			More    bool
		}
		tw.json(&list, "unknown", "list")
		require.Len(t, list.Unknown, 3)
		require.False(t, list.More)
		require.Equal(t, "timeout", list.Unknown[0].Class)
		tw.json(&list, "unknown", "list", "--type", "POINT", "--promotion", "1", "--limit", "2")
		require.Len(t, list.Unknown, 2)
		require.True(t, list.More)
		for _, none := range [][]string{{"--type", "voucher"}, {"--promotion", "2"}, {"--older-than", "1h"}} {
			tw.json(&list, append([]string{"unknown", "list"}, none...)...)
			require.Empty(t, list.Unknown, none)
			require.Equal(t, "No UNKNOWN payout matches.\n", tw.says(app.ExitOK, append([]string{"unknown", "list"}, none...)...))
		}
		tw.says(app.ExitUsage, "unknown", "list", "--type", "COIN")

		resolve := func(code int, target string, flags ...string) string {
			return tw.says(code, append([]string{"unknown", "resolve", "POINT", "1", target}, flags...)...)
		}
		resolve(app.ExitUsage, "1", "--why", "seen")
		resolve(app.ExitUsage, "1", "--why", "seen", "--unpaid", "--paid", "x")
		resolve(app.ExitUsage, "1", "--unpaid")
		require.Contains(t, resolve(app.ExitBad, "1", "--unpaid", "--why", "a guess"), "says it is charged, transaction key "+tx)
		require.Contains(t, resolve(app.ExitBad, "1", "--paid", "another", "--why", "a guess"), "not another")
		require.Contains(t, resolve(app.ExitBad, "2", "--paid", "seen", "--why", "a guess"), "--force")
		require.EqualValues(t, 3, tw.counts("POINT").Unknown, "nothing was changed")

		text := resolve(app.ExitOK, "1", "--paid", tx, "--why", "in their book", "--who", "kim")
		require.Contains(t, text, "no answer within 300ms", "the evidence is shown")
		require.Contains(t, text, "POINT:1:1 is SUCCESS now, as the Money API says.")
		text = resolve(app.ExitOK, "2", "--unpaid", "--force", "--why", "ticket 4711", "--who", "kim")
		require.Contains(t, text, "The Money API says: it knows no charge with this key, which is no proof.")
		require.Contains(t, text, "POINT:1:2 is FAILED now, on the word of kim.")
		var after promotion.Explained
		tw.json(&after, "unknown", "resolve", "POINT", "1", "3", "--paid", "elsewhere", "--why", "bank statement", "--who", "kim", "--force")
		require.Equal(t, ledger.Success, after.State)
		require.Contains(t, after.Next, "Its dead letter is still on its way: when millrace dead list shows it, discard it.")
		require.Contains(t, resolve(app.ExitBad, "2", "--unpaid", "--why", "again"), "FAILED, not UNKNOWN")

		var e promotion.Explained
		tw.json(&e, "campaign", "explain", "POINT", "1", "2")
		require.Len(t, e.Audit, 1)
		require.Equal(t, "kim", e.Audit[0].Who)
		require.Equal(t, "ticket 4711 (the Money API says: it knows no charge with this key, which is no proof)", e.Audit[0].Why)
		require.Contains(t, e.Next, "its dead letter is still on its way", "no instance runs that publishes it")
		require.Equal(t, "No promotion is unfinished or paused.\nFAILED payouts, not charged and given up: 1 (millrace dead list)\n", tw.says(app.ExitOK, "campaign", "status"))
		c := tw.counts("POINT")
		require.Equal(t, []int64{2, 1, 0}, []int64{c.Paid, c.Failed, c.Unknown})
	})
}

// Whoever resolves an UNKNOWN payout as paid leaves no letter behind that somebody else might replay; the rest names its letter.
func TestResolvingSettlesTheLetter(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, onlyOnce)
		for target := range int64(2) {
			tw.unknown(target + 1)
		}
		rival := pointRecord(1)
		rival.Payload = []byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":1,"amount":999}`)
		_, err := tw.ledger.Accept(t.Context(), rival, false)
		require.NoError(t, err)
		tx := tw.charge(pointRecord(1), pointRecord(1).Payload)
		// A service brings the letters to the working copy; the commands are other processes, and these are its plugins.
		stop := pipelinetest.StartUntil(t, middleware.Options{}, tw.all...)
		require.Eventually(t, func() bool {
			for k, n := range map[ledger.Key]int{pointRecord(1).Key: 2, pointRecord(2).Key: 1} {
				x, err := tw.ledger.Explain(t.Context(), k)
				if err != nil || len(x.Letters) != n || slices.ContainsFunc(x.Letters, func(l ledger.Letter) bool { return l.PublishedAt.IsZero() }) {
					return false
				}
			}
			return true
		}, 10*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())

		explain := func(target string, flags ...string) (e promotion.Explained) {
			tw.json(&e, append([]string{"campaign", "explain", "POINT", "1", target}, flags...)...)
			return e
		}
		e := explain("1", "--ask")
		require.True(t, e.Letters[0].Waits() && e.Letters[1].Waits())
		require.Contains(t, e.Next, "unknown resolve POINT 1 1 --paid "+tx)
		own, other := e.Letters[0], e.Letters[1]
		require.Equal(t, []string{"unknown", "conflict"}, []string{own.Class, other.Class})
		require.Contains(t, e.Next, "A second request for it waits as dead letter "+other.Name)
		text := tw.says(app.ExitOK, "campaign", "explain", "POINT", "1", "1")
		require.Contains(t, text, "it wanted "+string(rival.Payload))
		require.Contains(t, text, own.Name+"  open ")

		resolve := func(code int, target string, flags ...string) string {
			return tw.says(code, append([]string{"unknown", "resolve", "POINT", "1", target, "--who", "kim", "--why", "asked"}, flags...)...)
		}
		require.Contains(t, resolve(app.ExitOK, "1", "--paid", tx, "--dry-run"), "POINT:1:1 would be SUCCESS, as the Money API says; nothing was done.")
		require.Contains(t, resolve(app.ExitBad, "1", "--unpaid", "--dry-run"), "nothing was changed: the Money API says it is charged")
		require.EqualValues(t, 2, tw.counts("POINT").Unknown)
		text = resolve(app.ExitOK, "1", "--paid", tx)
		require.Contains(t, text, "POINT:1:1 is SUCCESS now, as the Money API says.\nIts dead letter "+own.Name+" is discarded.\nNext: nothing. It is paid.")
		e = explain("1")
		require.Equal(t, []letters.State{letters.Discarded, letters.Open}, []letters.State{e.Letters[0].State, e.Letters[1].State}, "the rival's waits for its own decision")

		unpaid := explain("2").Letters[0].Name
		require.Contains(t, resolve(app.ExitOK, "2", "--unpaid", "--force"), "millrace dead replay "+unpaid)
		require.Equal(t, letters.Open, explain("2").Letters[0].State)
	})
}

func TestUnknownIsResolvedWithoutTheMoneyAPI(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{Unauthorized: true}, onlyOnce)
		tw.unknown(1)
		unpaid := []string{"unknown", "resolve", "POINT", "1", "1", "--unpaid", "--why", "they said so", "--who", "kim"}
		require.Contains(t, tw.says(app.ExitBad, unpaid...), "nothing was changed: the Money API did not say that it knows no charge: it could not be asked")
		require.EqualValues(t, 1, tw.counts("POINT").Unknown)
		tw.says(app.ExitOK, append(unpaid, "--force")...)
		require.EqualValues(t, 1, tw.counts("POINT").Failed)
	})
}

// An API that forgets keys answers no_charge for all that are old: a person must know it otherwise.
func TestNoChargeOfAnOldKeyProvesNothing(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, func(c *promotion.Config) {
			c.MoneyAPI.CallTimeout, c.MoneyAPI.LeaseMargin, c.Ledger.IdempotencyTTL = 4*time.Second, time.Millisecond, 4002*time.Millisecond
			onlyOnce(c)
		})
		tw.unknown(1)
		require.Eventually(t, func() bool {
			x, err := tw.ledger.Explain(t.Context(), pointRecord(1).Key)
			return err == nil && x.KeyAge(x.Now) > tw.payouts.Settings().(*promotion.Config).Ledger.IdempotencyTTL
		}, 30*time.Second, 10*time.Millisecond)
		resolve := []string{"unknown", "resolve", "POINT", "1", "1", "--unpaid", "--why", "asked", "--who", "kim"}
		text := tw.says(app.ExitBad, resolve...)
		require.Contains(t, text, "it knows no charge with this key, which is no proof, and the key is older than idempotency_ttl.")
		require.Contains(t, text, "--force books it")
		require.EqualValues(t, 1, tw.counts("POINT").Unknown)
		require.Contains(t, tw.says(app.ExitOK, append(resolve, "--force")...), "POINT:1:1 is FAILED now, on the word of kim.")
	})
}

func TestUnpaidWaitsForARequestUnderWay(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"code":"in_flight","message":"a request with this key is being worked on"}`)
		}))
		t.Cleanup(api.Close)
		tw := newTown(t, moneysim.Faults{}, func(c *promotion.Config) { onlyOnce(c); c.MoneyAPI.URL = api.URL })
		tw.unknown(1)
		text := tw.says(app.ExitBad, "unknown", "resolve", "POINT", "1", "1", "--unpaid", "--why", "asked", "--who", "kim")
		require.Contains(t, text, "The Money API says: a request with this key is under way.")
		require.Contains(t, text, "a request is under way; ask again later")
		require.EqualValues(t, 1, tw.counts("POINT").Unknown)
	})
}

// A server that goes away in mid-command could not be had: that is no answer about the books.
func TestTheBookOfChargesGoesAway(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, `{"entries":[`)
		}))
		t.Cleanup(cut.Close)
		gone := httptest.NewServer(nil)
		gone.Close()
		tw := newTown(t, moneysim.Faults{}, nil)
		tw.end(1, ledger.Paid)
		for _, url := range []string{cut.URL, gone.URL} {
			tw.payouts.Settings().(*promotion.Config).MoneyAPI.URL = url
			tw.says(app.ExitUnavailable, "campaign", "reconcile", "POINT", "1", "--no-kafka")
		}
	})
}

// What explain sends people to look for: records that wait in Kafka, of a promotion that the ledger has never seen.
func TestReconcileWhatWasNeverAccepted(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, nil)
		tw.says(app.ExitOK, "campaign", "publish", "--promotion", "1", "--summary", "9", "--targets", "3", "--type", "POINT")
		require.Contains(t, tw.says(app.ExitBad, "campaign", "explain", "POINT", "1", "2"), "millrace campaign reconcile POINT 1")
		text := tw.says(app.ExitBad, "campaign", "reconcile", "POINT", "1", "--lag", "0s")
		require.Contains(t, text, "3 targets in all books")
		require.Contains(t, text, "targets that Kafka offers are not in the ledger: 3")
		require.Contains(t, tw.says(app.ExitBad, "campaign", "reconcile", "POINT", "1", "--no-kafka"), "not found")
		require.Contains(t, tw.says(app.ExitBad, "campaign", "reconcile", "VOUCHER", "1", "--no-kafka"), "is it another type (POINT, VOUCHER)")
		tw.charge(pointRecord(7), pointRecord(7).Payload)
		require.Contains(t, tw.says(app.ExitBad, "campaign", "reconcile", "POINT", "1", "--no-kafka"), "in_book_not_in_ledger")
	})
}

// A Money API of the contract can't list its charges, whatever it answers to a path that it doesn't know.
func TestAMoneyAPIWithoutABook(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, nil)
		tw.says(app.ExitOK, "campaign", "publish", "--promotion", "1", "--summary", "9", "--targets", "1", "--type", "POINT")
		tw.end(1, ledger.Paid)
		for _, answer := range []string{"404", `{}`, `{"entries":null}`, `{"status":"ok"}`, `[]`, "<html>"} {
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if answer == "404" {
					http.NotFound(w, r)
					return
				}
				fmt.Fprint(w, answer)
			}))
			t.Cleanup(api.Close)
			tw.payouts.Settings().(*promotion.Config).MoneyAPI.URL = api.URL
			require.Contains(t, tw.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1"), "has no call that lists charges: write charges.go for yours, or --no-money", answer)
		}
		text := tw.says(app.ExitOK, "campaign", "reconcile", "POINT", "1", "--no-money")
		require.Contains(t, text, "All that Kafka offers is in the ledger and settled; the Money API's book was not read.")
		tw.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1", "--no-money", "--no-kafka")
	})
}

// A simulator of the command's own would know of no charge: nobody is told that, or paid on it.
func TestTheSimulatorLivesInsideTheService(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, func(c *promotion.Config) {
			onlyOnce(c)
			c.MoneyAPI.Simulator.Enabled = true
		})
		const inside = "the simulated Money API lives inside the service: run `millrace moneyapi` and set plugins.promotion.money_api.url"
		for target := range int64(3) {
			tw.unknown(target + 1)
		}
		refused := func() {
			t.Helper()
			require.Contains(t, tw.says(app.ExitUsage, "campaign", "explain", "POINT", "1", "1", "--ask"), inside)
			require.Contains(t, tw.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1", "--no-kafka"), inside)
		}
		resolved := func(target string) {
			t.Helper()
			text := tw.says(app.ExitOK, "unknown", "resolve", "POINT", "1", target, "--unpaid", "--force", "--why", "ticket 4711", "--who", "kim")
			require.Contains(t, text, "it could not be asked (not_asked: "+inside)
		}
		refused()
		resolved("1")
		tw.says(app.ExitOK, "campaign", "explain", "POINT", "1", "2")

		book := filepath.Join(t.TempDir(), "book")
		tw.payouts.Settings().(*promotion.Config).MoneyAPI.Simulator.Book = book
		service, err := moneysim.New(moneysim.Config{BookPath: book})
		require.NoError(t, err)
		require.NoError(t, service.Start(t.Context()))
		refused()
		resolved("2")
		require.NoError(t, service.Stop(t.Context()))
		require.Contains(t, tw.says(app.ExitOK, "campaign", "explain", "POINT", "1", "3", "--ask"), "it knows no charge with this key", "a file can be read when the service has ended")
	})
}

// A newer version may have accepted what this one doesn't know.
func TestStatusOfAnUnknownType(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, nil)
		r := pointRecord(1)
		r.Key.Type = "COIN"
		_, err := tw.ledger.Accept(t.Context(), r, false)
		require.NoError(t, err)
		require.Contains(t, tw.says(app.ExitOK, "campaign", "status"), "COIN:1")
	})
}

func TestRebuildOnDemand(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, nil)
		for target := range int64(5) {
			_, err := tw.ledger.Accept(t.Context(), pointRecord(target+1), false)
			require.NoError(t, err)
		}
		require.EqualValues(t, 5, tw.counts("POINT").InStream)
		var r struct {
			Again int `json:"enqueued_again"`
		}
		tw.json(&r, "campaign", "rebuild", "POINT", "1")
		require.Equal(t, 5, r.Again)
		require.EqualValues(t, 5, tw.counts("POINT").NoHint)
		tw.says(app.ExitBad, "campaign", "rebuild", "POINT", "2")
		tw.says(app.ExitUsage, "campaign", "rebuild", "POINT", "1", "--who", "")
		tw.start() // and the feeder does the rest
		require.EqualValues(t, 5, tw.settle("POINT", 5).Paid)
	})
}

// pay accepts a payout and pays it at the Money API.
func (tw *town) pay(target int64) {
	tw.t.Helper()
	r := pointRecord(target)
	require.Equal(tw.t, ledger.Success, tw.end(target, ledger.Paid).State)
	tw.charge(r, r.Payload)
}

func TestReconcileThreeBooks(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		tw := newTown(t, moneysim.Faults{}, onlyOnce)
		targets := filepath.Join(t.TempDir(), "targets.csv")
		lines := "promotionType,targetId,amount,voucherId\n"
		for target := 1; target <= 5; target++ {
			lines += fmt.Sprintf("POINT,%d,%d,\n", target, 10*target)
		}
		require.NoError(t, os.WriteFile(targets, []byte(lines), 0o600))
		tw.says(app.ExitOK, "campaign", "publish", "--promotion", "1", "--summary", "9", "--csv", targets)
		tw.says(app.ExitOK, "campaign", "publish", "--promotion", "2", "--summary", "9", "--csv", targets)
		for target := range int64(4) {
			tw.pay(target + 1)
		}

		var r promotion.Reconciliation
		reconcile := func(code int, flags ...string) {
			t.Helper()
			stdout, stderr, got := tw.command(append([]string{"campaign", "reconcile", "POINT", "1", "--json", "--lag", "0s"}, flags...)...)
			require.Equal(t, code, got, stdout+stderr)
			r = promotion.Reconciliation{}
			require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		}
		reconcile(app.ExitBad)
		require.True(t, r.Balanced)
		require.EqualValues(t, 1, r.Buckets["offered_not_accepted"])
		require.Equal(t, []int64{5}, r.Examples["offered_not_accepted"])
		require.EqualValues(t, 4, r.Buckets["matched"])
		require.EqualValues(t, 10, r.Kafka.Read)
		require.EqualValues(t, 5, r.Kafka.Records)
		reconcile(app.ExitOK, "--no-kafka")
		require.Nil(t, r.Kafka)

		tw.pay(5)
		differing := filepath.Join(t.TempDir(), "differing.csv")
		reconcile(app.ExitOK, "--csv", differing)
		require.EqualValues(t, 5, r.Buckets["matched"])
		written, err := os.ReadFile(differing)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(written, []byte("\n")), "the header alone: nothing differs")
		reconcile(app.ExitOK, "--csv", differing, "--all")
		written, err = os.ReadFile(differing)
		require.NoError(t, err)
		require.Equal(t, 6, bytes.Count(written, []byte("\n")))

		tw.unknown(6)
		text := tw.says(app.ExitBad, "campaign", "reconcile", "POINT", "1")
		for _, part := range []string{"6 targets in all books", "unknown", "not_offered", "The books DON'T balance.", "10 records, 5 of this promotion"} {
			require.Contains(t, text, part)
		}
		tw.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1", "--all")
		tw.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1", "--csv", filepath.Join(t.TempDir(), "no", "folder"))
		require.NoError(t, os.WriteFile(differing, []byte("of another day"), 0o600))
		tw.says(app.ExitBad, "campaign", "reconcile", "POINT", "3", "--csv", differing)
		written, err = os.ReadFile(differing)
		require.NoError(t, err)
		require.Equal(t, "of another day", string(written), "of a promotion that is nowhere nothing is written")
	})
}
