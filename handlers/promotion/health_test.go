package promotion

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Readiness is progress: it fails without measurements, and when due work is not done here. It
// reads the last measurement only.
func TestReadinessIsTheLastMeasurement(t *testing.T) {
	t.Parallel()
	last, paused := feeder.Measurement{}, ""
	check := func() error {
		return readiness{func() feeder.Measurement { return last }, &payout.Progress{}, func(route string) bool { return route == paused }}.check(context.Background())
	}
	require.ErrorContains(t, check(), "the ledger has not been measured since the start")
	wait := func(id int64, overdue time.Duration) ledger.WaitTime {
		return ledger.WaitTime{UnfinishedPromotion: ledger.UnfinishedPromotion{Promotion: payouts.Promotion{Type: "POINT", ID: id}}, Overdue: overdue}
	}
	last = feeder.Measurement{At: time.Now(), Waiting: []ledger.WaitTime{wait(1, 0), wait(2, stalledAfter)}}
	require.NoError(t, check())
	last.Waiting = append(last.Waiting, wait(3, 2*time.Minute), wait(4, 3*time.Minute))
	require.ErrorContains(t, check(), "4: a payout has been due for 3m0s, and this instance settles nothing (2 promotions wait so long)")
	for _, paused = range []string{"promotion.point.accept", "promotion.point.stream", "promotion.point.retry"} {
		require.NoError(t, check(), "an operator has paused %s", paused)
	}
	paused = "promotion.voucher.stream"
	require.ErrorContains(t, check(), "this instance settles nothing")
	last = feeder.Measurement{At: time.Now().Add(-4 * feeder.MeasureInterval)}
	require.ErrorContains(t, check(), "the ledger has not been measured since")
}

// Alerts about a type are silent while a route is paused that pays it, also one that is for retries only.
func TestTheTypeOfAPausedRouteIsMeasured(t *testing.T) {
	t.Parallel()
	for route, want := range map[string][2]float64{ // POINT, VOUCHER
		"":                        {0, 0},
		"promotion.point.accept":  {1, 0},
		"promotion.point.stream":  {1, 0},
		"promotion.voucher.retry": {0, 1},
		"promotion.started":       {0, 0},
	} {
		metric := pausedRoutes{readiness{paused: func(name string) bool { return name == route }}}
		require.NoError(t, testutil.CollectAndCompare(metric, strings.NewReader(fmt.Sprintf(`# HELP millrace_promotion_route_paused 1 while an operator has paused a route that pays promotions of the type, as this instance knows it.
# TYPE millrace_promotion_route_paused gauge
millrace_promotion_route_paused{type="POINT"} %v
millrace_promotion_route_paused{type="VOUCHER"} %v
`, want[0], want[1]))), route)
	}
}

// An instance tells the others at which rate its calls begin after the Money API refused too many.
func TestAnInstanceTellsItsRate(t *testing.T) {
	t.Parallel()
	full := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"code":"too_many","message":"too many calls"}`, http.StatusTooManyRequests)
	}))
	t.Cleanup(full.Close)
	config := DefaultConfig()
	api := &config.MoneyAPI
	api.URL, api.Breaker.MinCalls, api.CallTimeout, api.ConnectTimeout = full.URL, 3, 2*time.Minute, 2*time.Minute
	run := newResources(&config)
	client, err := money.New(api.Config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	run.client.Store(client)
	require.Zero(t, run.clientState().Pace)
	for _, key := range []string{"POINT:1:1", "POINT:1:2", "POINT:1:3"} {
		client.Lookup(t.Context(), key)
	}
	require.Equal(t, 1.0, run.clientState().Pace, "it answered none")
}

// The Money API that is down, each pause, and what a person must decide are conditions of the route that pays.
func TestConditions(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"code":"database_down","message":"the database of charges is down"}`, http.StatusInternalServerError)
	}))
	t.Cleanup(down.Close)
	config := DefaultConfig()
	api := &config.MoneyAPI
	api.URL, api.Breaker.MinCalls, api.Breaker.OpenDelay = down.URL, 3, time.Hour
	api.CallTimeout, api.ConnectTimeout = 2*time.Minute, 2*time.Minute // the machine may be busy
	run := newResources(&config)
	var last feeder.Measurement
	conditions := conditions{run, func() feeder.Measurement { return last }}
	require.Empty(t, conditions.Conditions(), "nothing was measured, and nobody has called")

	client, err := money.New(api.Config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	run.client.Store(client)
	for _, key := range []string{"POINT:1:1", "POINT:1:2", "POINT:1:3"} {
		client.Lookup(t.Context(), key)
	}
	all := conditions.Conditions()
	require.Len(t, all, 1)
	require.Equal(t, []any{"Money API", operate.Fail, pipeline.ServerOf(down.URL)}, []any{all[0].Name, all[0].Level, all[0].Place})
	require.Contains(t, all[0].Text, "the database of charges is down")

	last = feeder.Measurement{
		Totals: []ledger.Totals{{Type: "POINT", Paid: 7, Failed: 2, Unknown: 1}, {Type: "VOUCHER", Paid: 3}},
		Paused: []ledger.PausedPromotion{
			{Promotion: payouts.Promotion{Type: "VOUCHER", ID: 3}, For: time.Second, Holds: true},
			{Promotion: payouts.Promotion{Type: "VOUCHER", ID: 4}, For: time.Hour}, // nothing of it is unsettled
		},
	}
	for id := range int64(5) {
		last.Paused = append(last.Paused, ledger.PausedPromotion{Promotion: payouts.Promotion{Type: "POINT", ID: 1 + id}, For: time.Duration(1+id) * time.Minute, Holds: true})
	}
	var said []string
	for _, c := range conditions.Conditions()[1:] {
		require.Equal(t, "campaigns", c.Page)
		require.NotEmpty(t, c.Remedy)
		said = append(said, c.Route+" "+string(c.Level)+" "+c.Name+": "+c.Text)
	}
	require.Equal(t, []string{
		"promotion.point.stream warn campaigns POINT: 5 campaigns are paused, which holds payouts back: POINT:1, POINT:2, POINT:3 and 2 more; the longest pause has lasted 5m0s",
		"promotion.point.stream fail campaigns POINT: 1 payout is unknown: perhaps paid, so none is sent again",
		"promotion.voucher.stream warn campaigns VOUCHER: 1 campaign is paused, which holds payouts back: VOUCHER:3; the longest pause has lasted 1s",
	}, said)
}

// What the database of the ledger refuses is seen without the log.
func TestARefusedStatementIsACondition(t *testing.T) {
	t.Parallel()
	config := DefaultConfig()
	config.Ledger.DSN = setting.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "ledger.db"))
	run := newResources(&config)
	l, err := ledger.Open(t.Context(), config.Ledger, ledger.Options{Instance: "a", Lease: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	run.opened.Store(l)
	conditions := conditions{run, func() feeder.Measurement { return feeder.Measurement{} }}
	require.Empty(t, conditions.Conditions())
	_, err = l.Begin(t.Context(), payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: 1, Target: 2}, SummaryID: 1, Payload: []byte("{}"), Route: "h"})
	require.ErrorIs(t, err, ledger.ErrRefusedByDatabase, "there are no tables")
	all := conditions.Conditions()
	require.Len(t, all, 1)
	require.Equal(t, []any{"ledger of payouts", operate.Fail, "campaigns"}, []any{all[0].Name, all[0].Level, all[0].Page})
	require.Contains(t, all[0].Text, "begin: ")
	require.NotEmpty(t, all[0].Remedy)
}
