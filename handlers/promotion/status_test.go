package promotion_test

import (
	"database/sql"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/reconcile"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/redis"
)

type statuses struct{ Promotions []campaign.Status }

// Without Redis the ledger's part is shown all the same, and the exit code says that it is not all.
func TestStatusWithoutRedis(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(1)}, ledger.AcceptOptions{})[0].Err)
		sys.end(2, rules.Done)
		closed, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		sys.all[0].(*redis.Plugin).Settings().(*redis.Config).Addrs = []string{closed.Addr().String()}

		text := sys.says(app.ExitUnavailable, "campaign", "status", "POINT", "1")
		require.Regexp(t, `\n  paid +1\n`, text)
		require.Regexp(t, `\n  pending +1\n`, text)
		require.Contains(t, text, "instances: redis does not answer: ")
		require.Regexp(t, `\n  oldest unpaid +\S+, target 1; millrace campaign explain POINT 1 1\n`, text)
		require.Regexp(t, `POINT:1 +RUNNING +2 +1 `, sys.says(app.ExitUnavailable, "campaign", "status"))
		stdout, _, code := sys.command("campaign", "status", "--json")
		require.Equal(t, app.ExitUnavailable, code)
		var s statuses
		require.NoError(t, json.Unmarshal([]byte(stdout), &s))
		require.EqualValues(t, 1, s.Promotions[0].Paid)
		require.EqualValues(t, 1, *s.Promotions[0].OldestTarget)
		require.Nil(t, s.Promotions[0].Instances)
		require.Len(t, s.Promotions[0].NotKnown, 1)
	})
}

// The status of a campaign that runs says how fast it is, when it ends, and what the Money API answers. The numbers
// of one moment agree: no instance makes more calls than it may, and the queues have all that is pending.
func TestStatusOfACampaignThatRuns(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{Latency: 50 * time.Millisecond}, func(c *promotion.Config) {
			c.Stream.MinConsumers, c.Stream.MaxConsumers = 2, 2
			c.Stream.ReconcileInterval = 50 * time.Millisecond
		}).start()
		sys.send(publish, points(1, 1000)...)
		var s campaign.Status
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			all, err := sys.payouts.Campaigns().Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
			require.NoError(c, err)
			s = all.Promotions[0]
			require.NotNil(c, s.Rate)
			require.Positive(c, s.Rate.PerSecond)
			require.Positive(c, s.Rate.Calling)
			require.Positive(c, s.InFlight)
			require.Contains(c, s.LimitedBy, "2 of at most 2 run, on 1 instance")
		}, 2*time.Minute, 5*time.Millisecond)
		require.Positive(t, s.Pending, "it runs")
		require.Equal(t, s.Pending, s.InStream+s.InRetry+s.InNoQueue)
		require.True(t, s.ExpectedEnd.After(time.Now()))
		require.Positive(t, s.Rate.Answers["paid"])
		require.GreaterOrEqual(t, s.Rate.P50, 0.05, "no call is faster than the latency")
		require.Empty(t, s.Rate.NotTaking)
		require.Equal(t, sys.payouts.Settings().(*promotion.Config).MoneyAPI.Concurrency, s.Rate.Limit)
		require.Len(t, s.Instances, 1)
		require.Equal(t, 2, s.Instances[0].Slots)
		require.LessOrEqual(t, s.Instances[0].Note.Recent.Calling, 2)
		text := sys.says(app.ExitOK, "campaign", "status", "POINT", "1")
		for _, want := range []string{"payouts a second since the start of ", "expected end", "  breaker            closed", "CALLS AT MOST", "0 written so far, 0 of them wait"} {
			require.Contains(t, text, want)
		}
		require.Regexp(t, `PER SECOND +ENDS\nPOINT:1 +RUNNING .* in [0-9]`, sys.says(app.ExitOK, "campaign", "status"))
	})
}

// Money API down: the status says that the breaker is open, and why nothing is paid.
func TestStatusOfACampaignWhoseBreakerIsOpen(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{FailRate: 1}, func(c *promotion.Config) {
			c.Stream.ReconcileInterval = 50 * time.Millisecond
			c.MoneyAPI.Breaker.OpenDelay = time.Hour
		}).start()
		sys.send(publish, points(1, 200)...)
		id := payouts.Promotion{Type: "POINT", ID: 1}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			all, err := sys.payouts.Campaigns().Status(t.Context(), id)
			require.NoError(c, err)
			s := all.Promotions[0]
			require.NotNil(c, s.Rate)
			require.Contains(c, s.Rate.BreakerText(), "breaker open")
			require.Positive(c, s.Rate.Answers["ambiguous"])
			require.Zero(c, s.Rate.PerSecond)
			require.Zero(c, s.ExpectedEnd)
			require.Equal(c, "RUNNING, breaker open", s.StateText())
			require.Contains(c, sys.panel("campaigns", "campaigns", nil), `"state":"running, breaker open"`)
			unfinished, err := sys.load("campaigns", "unfinished", nil)
			require.NoError(c, err)
			require.Contains(c, unfinished.(console.Table).Note, "This instance sends no calls now: breaker open.")
		}, 2*time.Minute, 20*time.Millisecond)
	})
}

// Dead letters that were written and those that wait are different numbers.
func TestStatusCountsDeadLettersThatWait(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{RejectRate: 1}, nil).start()
		sys.send(publish, points(1, 3)...)
		require.EqualValues(t, 3, sys.settle("POINT", 3).Failed)
		status := func() campaign.Status {
			all, err := sys.payouts.Campaigns().Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
			require.NoError(t, err)
			return all.Promotions[0]
		}
		require.Eventually(t, func() bool { return *status().DeadWaiting == 3 }, 2*time.Minute, 20*time.Millisecond)
		dead := sys.all[2].(*deadletter.Plugin)
		discarded, err := dead.Settled(t.Context(), "promotion", "POINT:1:2", store.By{Who: "ann", Why: "a test"})
		require.NoError(t, err)
		require.Len(t, discarded, 1)
		require.EqualValues(t, 3, status().Dead)
		require.EqualValues(t, 2, *status().DeadWaiting)
		require.Contains(t, sys.says(app.ExitOK, "campaign", "status", "POINT", "1"), "3 written so far, 2 of them wait for a person")
		var r reconcile.Report
		sys.json(&r, "campaign", "reconcile", "POINT", "1", "--no-money")
		require.EqualValues(t, 3, r.Dead)
		require.EqualValues(t, 2, *r.DeadWaiting, "it is read from the store")
		require.Regexp(t, "dead, waiting +2  dead letters in their store", sys.says(app.ExitOK, "campaign", "reconcile", "POINT", "1", "--no-money"))

		require.EqualValues(t, 3, r.Kept.Failed)
		db, err := sql.Open("sqlite", strings.TrimPrefix(sys.payouts.Settings().(*promotion.Config).Ledger.DSN.Reveal(), "sqlite:"))
		require.NoError(t, err)
		defer db.Close()
		_, err = db.ExecContext(t.Context(), "UPDATE promotion_summaries SET failed = failed + 1")
		require.NoError(t, err)
		require.Contains(t, sys.says(app.ExitBad, "campaign", "reconcile", "POINT", "1", "--no-money"), "keeps the totals paid 0, failed 4, unknown 0")
	})
}

// While records of a campaign are missing, such as those behind an open transaction, it is not finished, although
// everything that was accepted is settled.
func TestACampaignWithMissingRecordsIsNotFinished(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		announce := func(count int64) {
			t.Helper()
			require.NoError(t, sys.ledger.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, count))
		}
		finished := func() []bool {
			t.Helper()
			var list struct{ Promotions []campaign.Listed }
			var all statuses
			sys.json(&list, "campaign", "list")
			sys.json(&all, "campaign", "status", "POINT:1")
			return []bool{list.Promotions[0].Finished, all.Promotions[0].Finished}
		}
		announce(3)
		require.Regexp(t, `POINT:1 +RUNNING, 0 of 3 accepted +-`, sys.says(app.ExitOK, "campaign", "list"))
		sys.end(1, rules.Done)
		sys.end(2, rules.Rejected)
		require.Regexp(t, `POINT:1 +RUNNING, 2 of 3 accepted .* 2 +1 +1 +0 +0 +0\n$`, sys.says(app.ExitOK, "campaign", "list"))
		text := sys.says(app.ExitOK, "campaign", "status", "POINT:1")
		require.Regexp(t, `^POINT:1 +RUNNING, 2 of 3 accepted\n`, text)
		require.Regexp(t, `\n  announced +3, of which 1 is not accepted; all others are settled; millrace campaign reconcile POINT 1 looks for the records\n`, text)
		require.Contains(t, sys.says(app.ExitOK, "campaign", "explain", "POINT:1:1"), "RUNNING\n")
		require.Equal(t, []bool{false, false}, finished())

		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(3)}, ledger.AcceptOptions{})[0].Err)
		require.Regexp(t, `^POINT:1 +RUNNING\n`, sys.says(app.ExitOK, "campaign", "status", "POINT:1"))
		sys.says(app.ExitOK, "campaign", "cancel", "POINT:1", "--why", "x")
		announce(4)
		require.Regexp(t, `^POINT:1 +CANCELLED\n`, sys.says(app.ExitOK, "campaign", "status", "POINT:1"))
	})
	t.Run("more than announced", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		require.NoError(t, sys.ledger.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 1))
		sys.end(1, rules.Done)
		sys.end(2, rules.Done)
		text := sys.says(app.ExitOK, "campaign", "status", "POINT:1")
		require.Regexp(t, `^POINT:1 +FINISHED\n`, text)
		require.Regexp(t, `\n  announced +1\n`, text)
	})
}
