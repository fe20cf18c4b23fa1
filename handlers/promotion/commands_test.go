package promotion_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/handlers/promotion/reconcile"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// command runs the binary's command line in this process, with the system's settings. It has plugins of its own, as
// another process would have, because those of the system may run.
func (sys *system) command(args ...string) (stdout, stderr string, code int) {
	sys.t.Helper()
	config := filepath.Join(sys.t.TempDir(), "config.yaml")
	require.NoError(sys.t, os.WriteFile(config, []byte("log: {level: error}\n"), 0o600))
	_, _, own := plugins()
	for i, p := range sys.all {
		if with, ok := p.(pipeline.Configurable); ok {
			reflect.ValueOf(own[i].(pipeline.Configurable).Settings()).Elem().Set(reflect.ValueOf(with.Settings()).Elem())
		}
	}
	var out, errs bytes.Buffer
	code = app.Main(sys.t.Context(), app.Options{Name: "millrace", Plugins: own, Stdout: &out, Stderr: &errs,
		Args: append(args, "--config", config), Environ: []string{}})
	return out.String(), errs.String(), code
}

// says runs a command that must end with code, and returns what it wrote.
func (sys *system) says(code int, args ...string) string {
	sys.t.Helper()
	stdout, stderr, got := sys.command(args...)
	require.Equal(sys.t, code, got, "%v: %s%s", args, stdout, stderr)
	return stdout + stderr
}

func (sys *system) json(to any, args ...string) {
	sys.t.Helper()
	stdout, stderr, code := sys.command(append(args, "--json")...)
	require.Zero(sys.t, code, "%v: %s%s", args, stdout, stderr)
	require.NoError(sys.t, json.Unmarshal([]byte(stdout), to), stdout)
}

func pointRecord(target int64) payouts.Record {
	payload := fmt.Appendf(nil, `{"promotionId":1,"promotionSummaryId":9,"targetId":%d,"amount":%d}`, target, 10*target)
	return payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: 1, Target: target}, SummaryID: 9, Payload: payload,
		RecordKey: strconv.AppendInt(nil, target, 10), Origin: "kafka campaign-promotion-point-publish/0@" + strconv.FormatInt(target, 10), Route: "promotion.point.stream"}
}

// end accepts a payout and ends its first call in that way.
func (sys *system) end(target int64, o rules.Outcome) ledger.SettleResult {
	sys.t.Helper()
	r := pointRecord(target)
	require.NoError(sys.t, sys.ledger.Accept(sys.t.Context(), []payouts.Record{r}, ledger.AcceptOptions{})[0].Err)
	return sys.call(r, o)
}

func (sys *system) call(r payouts.Record, o rules.Outcome) ledger.SettleResult {
	sys.t.Helper()
	b, err := sys.ledger.Begin(sys.t.Context(), r)
	require.NoError(sys.t, err)
	require.Contains(sys.t, []rules.Next{rules.Send, rules.Lookup}, b.Next)
	s, err := sys.ledger.Settle(sys.t.Context(), payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: o, Receipt: "tx-" + r.Key.String(),
		Class: "timeout", Answer: "no answer within 300ms", Route: r.Route}})
	require.NoError(sys.t, err)
	return s
}

// unknown ends a payout as UNKNOWN: with onlyOnce its only send and its only lookup show nothing.
func (sys *system) unknown(target int64) {
	sys.end(target, rules.Unclear)
	require.Equal(sys.t, rules.Unknown, sys.call(pointRecord(target), rules.Rejected).State)
}

// charge sends a charge to the simulated Money API.
func (sys *system) charge(r payouts.Record, body []byte) (transactionKey string) {
	sys.t.Helper()
	cfg := oncehttp.DefaultConfig()
	cfg.URL = sys.api.URL()
	api, err := money.New(cfg, nil)
	require.NoError(sys.t, err)
	defer func() { require.NoError(sys.t, api.Close()) }()
	a := api.Charge(sys.t.Context(), money.Charge{Operation: money.Operation{Name: "chargePoint", Path: "/v1/points/charges"}, Key: r.Key.String(), Body: body})
	require.Equal(sys.t, money.Paid, a.Class, a.Text)
	return a.TransactionKey
}

// onlyOnce leaves one send and one lookup, and no wait between them.
func onlyOnce(c *promotion.Config) {
	c.Ledger.MaxRetries, c.Ledger.Retry = 0, pipeline.Backoff{First: 1, Max: 1}
}

func TestExplain(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		sys.end(7, rules.Unclear)
		text := sys.says(app.ExitOK, "campaign", "explain", "point", "1", "7")
		for _, part := range []string{"POINT:1:7 ", "AMBIGUOUS", "campaign-promotion-point-publish/0@7", `"amount":70`, "send 1", "perhaps_charged", "no answer within 300ms",
			"its retry record ", "The request is sent with the key POINT:1:7 again"} {
			require.Contains(t, text, part)
		}
		require.NotContains(t, text, "trace", "its record has none")
		require.Contains(t, sys.says(app.ExitBad, "campaign", "explain", "POINT", "1", "8"), "POINT:1:8 is not in the ledger. If its record was published, it may still wait in Kafka")
		// The text after the calls has times relative to now.
		calls, _, _ := strings.Cut(text, "its retry record")
		require.Contains(t, sys.says(app.ExitOK, "campaign", "explain", "POINT:1:7"), calls, "an id as the commands print it")
		sys.says(app.ExitUsage, "campaign", "explain", "POINT", "1", "-8")
		sys.says(app.ExitUsage, "campaign", "explain", "COIN", "1", "8")
		require.Equal(t, promotiontype.StartedSchema(), sys.says(app.ExitOK, "campaign", "schema", "STARTED"))
		require.Contains(t, sys.says(app.ExitOK, "campaign", "schema", "point"), "A record of campaign-promotion-point-publish")
		sys.says(app.ExitUsage, "campaign", "schema", "COIN")
		_, said, code := sys.command("campaign", "explain", "POINT")
		require.Equal(t, app.ExitUsage, code)
		require.Contains(t, said, "requires TYPE PROMOTION TARGET, as in POINT 12345 777 or POINT:12345:777; got 1 argument")
		require.Contains(t, sys.says(app.ExitBad, "campaign", "status", "VOUCHER", "1"), "is it another type (POINT, VOUCHER")

		var e campaign.Explained
		sys.json(&e, "campaign", "explain", "POINT", "1", "7", "--query-api")
		require.Equal(t, rules.Ambiguous, e.State)
		require.Equal(t, "POINT:1:7", e.Key)
		require.Len(t, e.Calls, 1)
		require.True(t, e.MaybeCharged)
		require.Equal(t, "no_charge", e.MoneyAPI.Answer)
		require.Empty(t, e.Audit)
	})
}

// A record that an operator sends is a payment: it needs a reason, and the audit has it first.
func TestASentRecordIsAudited(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		topic, record := "campaign-promotion-point-publish", string(pointRecord(7).Payload)
		require.Contains(t, sys.says(app.ExitUsage, "send", topic, record), "--why REASON required, for the audit: a record of "+topic)
		retry := "campaign-promotion-point-retry"
		require.Contains(t, sys.says(app.ExitUsage, "send", retry, record), "--why REASON required", "accept_unannounced may pay it")
		require.Contains(t, sys.says(app.ExitOK, "send", topic, record, "no JSON", "--why", "ticket 8"), "2 records sent to "+topic)
		sys.end(7, rules.Done)
		var e campaign.Explained
		sys.json(&e, "campaign", "explain", "POINT", "1", "7")
		require.Len(t, e.Audit, 1)
		require.Equal(t, []string{"send", "ticket 8", "to " + topic}, []string{e.Audit[0].Action, e.Audit[0].Why, e.Audit[0].Detail})
		require.Contains(t, sys.says(app.ExitOK, "tail", topic, "--from", "oldest", "--count", "2"), record)
	})
}

// A server that ends during the command is unavailable: that says nothing about the payouts.
func TestTheMoneyAPIEndsDuringReconcile(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, `{"entries":[`)
		}))
		t.Cleanup(cut.Close)
		gone := httptest.NewServer(nil)
		gone.Close()
		sys := newSystem(t, simulator.Faults{}, nil)
		sys.end(1, rules.Done)
		for _, url := range []string{cut.URL, gone.URL} {
			sys.payouts.Settings().(*promotion.Config).MoneyAPI.URL = url
			sys.says(app.ExitUnavailable, "campaign", "reconcile", "POINT", "1", "--no-kafka")
		}
	})
}

// Records that wait in Kafka, of a promotion that the ledger does not have: explain points to
// reconcile.
func TestReconcileWhatWasNeverAccepted(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		sys.says(app.ExitOK, "campaign", "publish", "--promotion", "1", "--summary", "9", "--targets", "3", "--type", "POINT")
		require.Contains(t, sys.says(app.ExitBad, "campaign", "explain", "POINT", "1", "2"), "millrace campaign reconcile POINT 1")
		text := sys.says(app.ExitBad, "campaign", "reconcile", "POINT", "1", "--lag", "0s")
		require.Contains(t, text, "3 targets in all sources")
		require.Contains(t, text, "targets in Kafka are not in the ledger: 3")
		require.Contains(t, sys.says(app.ExitBad, "campaign", "reconcile", "POINT", "1", "--no-kafka"), "not found")
		require.Contains(t, sys.says(app.ExitBad, "campaign", "reconcile", "VOUCHER", "1", "--no-kafka"), "is it another type (POINT, VOUCHER")
		sys.charge(pointRecord(7), pointRecord(7).Payload)
		require.Contains(t, sys.says(app.ExitBad, "campaign", "reconcile", "POINT", "1", "--no-kafka"), "in_book_not_in_ledger")
	})
}

// A Money API that is not the simulator can't list its charges, whatever it answers for an unknown
// path.
func TestAMoneyAPIThatListsNoCharges(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		sys.says(app.ExitOK, "campaign", "publish", "--promotion", "1", "--summary", "9", "--targets", "1", "--type", "POINT")
		sys.end(1, rules.Done)
		for _, answer := range []string{"404", `{}`, `{"entries":null}`, `{"status":"ok"}`, `[]`, "<html>"} {
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if answer == "404" {
					http.NotFound(w, r)
					return
				}
				fmt.Fprint(w, answer)
			}))
			t.Cleanup(api.Close)
			sys.payouts.Settings().(*promotion.Config).MoneyAPI.URL = api.URL
			require.Contains(t, sys.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1"), "has no call that lists charges: write handlers/promotion/cli/charges.go for yours, or --no-money", answer)
		}
		text := sys.says(app.ExitOK, "campaign", "reconcile", "POINT", "1", "--no-money")
		require.Contains(t, text, "All that Kafka contains is in the ledger and settled; the Money API was not read.")
		sys.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1", "--no-money", "--no-kafka")
	})
}

// A simulator that the command starts has no charges, so the command does not use one.
func TestTheSimulatorRunsInsideTheService(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			onlyOnce(c)
			c.MoneyAPI.Simulator.Enabled = true
		})
		const inside = "the simulated Money API runs inside the service: run `millrace money-simulator` and set plugins.promotion.money_api.url"
		for target := range int64(3) {
			sys.unknown(target + 1)
		}
		refused := func() {
			t.Helper()
			require.Contains(t, sys.says(app.ExitUsage, "campaign", "explain", "POINT", "1", "1", "--query-api"), inside)
			require.Contains(t, sys.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1", "--no-kafka"), inside)
		}
		resolved := func(target string) {
			t.Helper()
			text := sys.says(app.ExitOK, "unknown", "resolve", "POINT", "1", target, "--unpaid", "--force", "--why", "ticket 4711", "--who", "kim")
			require.Contains(t, text, "no answer (not_asked: "+inside)
		}
		refused()
		resolved("1")
		sys.says(app.ExitOK, "campaign", "explain", "POINT", "1", "2")

		book := filepath.Join(t.TempDir(), "book")
		sys.payouts.Settings().(*promotion.Config).MoneyAPI.Simulator.Journal = book
		service, err := simulator.New(simulator.Config{JournalPath: book})
		require.NoError(t, err)
		require.NoError(t, service.Start(t.Context()))
		refused()
		resolved("2")
		require.NoError(t, service.Stop(t.Context()))
		require.Contains(t, sys.says(app.ExitOK, "campaign", "explain", "POINT", "1", "3", "--query-api"), "no charge with this key", "a file can be read when the service has ended")
	})
}

// A newer version may have accepted a type that this version does not have.
func TestStatusOfAnUnknownType(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		r := pointRecord(1)
		r.Key.Type = "COIN"
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{r}, ledger.AcceptOptions{})[0].Err)
		require.Contains(t, sys.says(app.ExitOK, "campaign", "status"), "COIN:1")
	})
}

func TestCampaignList(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		require.Equal(t, "The ledger has no promotions.\n", sys.says(app.ExitOK, "campaign", "list"))
		sys.end(1, rules.Done)
		require.Regexp(t, `POINT:1 +FINISHED .* 1 +1 +0 +0 +0 +0\n$`, sys.says(app.ExitOK, "campaign", "list"), "a finished promotion is listed too")
		require.Regexp(t, `^POINT:1 +FINISHED\n`, sys.says(app.ExitOK, "campaign", "status", "POINT:1"))
		require.Regexp(t, `\n  promotion +FINISHED\n`, sys.says(app.ExitOK, "campaign", "explain", "POINT:1:1"))
		require.Equal(t, "No promotion has unsettled payouts, and none is paused.\n", sys.says(app.ExitOK, "campaign", "status"))
		sys.says(app.ExitOK, "campaign", "pause", "VOUCHER:2", "--why", "test", "--future")
		var list struct {
			Promotions []campaign.Listed
			More       bool
		}
		sys.json(&list, "campaign", "list")
		require.Len(t, list.Promotions, 2)
		require.Equal(t, rules.GroupPaused, list.Promotions[0].State)
		require.True(t, list.Promotions[1].Finished)
		require.EqualValues(t, 1, list.Promotions[1].Paid)
		require.Contains(t, sys.says(app.ExitOK, "campaign", "list", "--limit", "1"), "There are more than 1 promotion; --limit shows them.")
		sys.json(&list, "campaign", "list", "--type", "point")
		require.Len(t, list.Promotions, 1)
		require.Regexp(t, `^PROMOTION +STATE .*\nVOUCHER:2 +PAUSED +0 `, sys.says(app.ExitOK, "campaign", "status"), "a table")
	})
}

func TestRebuildOnDemand(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		for target := range int64(5) {
			require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(target + 1)}, ledger.AcceptOptions{})[0].Err)
		}
		require.EqualValues(t, 5, sys.counts("POINT").InStream)
		var r struct {
			Again int `json:"enqueued_again"`
		}
		sys.json(&r, "campaign", "rebuild", "POINT", "1", "--why", "test")
		require.Equal(t, 5, r.Again)
		require.EqualValues(t, 5, sys.counts("POINT").InNoQueue)
		sys.says(app.ExitBad, "campaign", "rebuild", "POINT", "2", "--why", "test")
		sys.says(app.ExitUsage, "campaign", "rebuild", "POINT", "1", "--why", "test", "--who", "")
		sys.start() // and the feeder does the rest
		require.EqualValues(t, 5, sys.settle("POINT", 5).Paid)
	})
}

// pay accepts a payout and pays it at the Money API.
func (sys *system) pay(target int64) {
	sys.t.Helper()
	r := pointRecord(target)
	require.Equal(sys.t, rules.Success, sys.end(target, rules.Done).State)
	sys.charge(r, r.Payload)
}

func TestReconcileThreeSources(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, onlyOnce)
		targets := filepath.Join(t.TempDir(), "targets.csv")
		lines := "promotionType,targetId,amount,voucherId\n"
		for target := 1; target <= 5; target++ {
			lines += fmt.Sprintf("POINT,%d,%d,\n", target, 10*target)
		}
		require.NoError(t, os.WriteFile(targets, []byte(lines), 0o600))
		sys.says(app.ExitOK, "campaign", "publish", "--promotion", "1", "--summary", "9", "--csv", targets)
		sys.says(app.ExitOK, "campaign", "publish", "--promotion", "2", "--summary", "9", "--csv", targets)
		for target := range int64(4) {
			sys.pay(target + 1)
		}

		var r reconcile.Report
		compare := func(code int, flags ...string) {
			t.Helper()
			stdout, stderr, got := sys.command(append([]string{"campaign", "reconcile", "POINT", "1", "--json", "--lag", "0s"}, flags...)...)
			require.Equal(t, code, got, stdout+stderr)
			r = reconcile.Report{}
			require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		}
		compare(app.ExitBad)
		require.True(t, r.Balanced)
		require.EqualValues(t, 1, r.Buckets["offered_not_accepted"])
		require.Equal(t, []int64{5}, r.Examples["offered_not_accepted"])
		require.EqualValues(t, 4, r.Buckets["matched"])
		require.EqualValues(t, 10, r.Kafka.Read)
		require.EqualValues(t, 5, r.Kafka.Records)
		compare(app.ExitOK, "--no-kafka")
		require.Nil(t, r.Kafka)

		sys.pay(5)
		differing := filepath.Join(t.TempDir(), "differing.csv")
		compare(app.ExitOK, "--csv", differing)
		require.EqualValues(t, 5, r.Buckets["matched"])
		written, err := os.ReadFile(differing)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(written, []byte("\n")), "the header alone: nothing differs")
		compare(app.ExitOK, "--csv", differing, "--all")
		written, err = os.ReadFile(differing)
		require.NoError(t, err)
		require.Equal(t, 6, bytes.Count(written, []byte("\n")))

		sys.unknown(6)
		text := sys.says(app.ExitBad, "campaign", "reconcile", "POINT", "1")
		for _, part := range []string{"6 targets in all sources", "unknown", "not_offered", "The books DON'T balance; target 6, unknown: find out", "10 records, 5 of this promotion"} {
			require.Contains(t, text, part)
		}
		sys.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1", "--all")
		sys.says(app.ExitUsage, "campaign", "reconcile", "POINT", "1", "--csv", filepath.Join(t.TempDir(), "no", "folder"))
		require.NoError(t, os.WriteFile(differing, []byte("of another day"), 0o600))
		sys.says(app.ExitBad, "campaign", "reconcile", "POINT", "3", "--csv", differing)
		written, err = os.ReadFile(differing)
		require.NoError(t, err)
		require.Equal(t, "of another day", string(written), "of a promotion that is nowhere nothing is written")
	})
}
