package campaign

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

func textOf(t *testing.T, s Status) string {
	t.Helper()
	var out strings.Builder
	a := s.answer(Statuses{}, time.Now())
	for _, table := range a.Tables {
		w := app.Table(&out)
		for _, row := range append([][]string{table.Columns}, table.Rows...) {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		require.NoError(t, w.Flush())
	}
	return out.String() + strings.Join(a.Notes, "\n")
}

// Letters that were written and those that wait for a person are different numbers, and only a promotion that
// has some leads to the command that lists them.
func TestStatusSeparatesDeadLettersThatWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dead    int64
		waiting *int64
		want    string
	}{
		{0, new(int64), "  dead letters  0 written so far, 0 of them wait for a person; 0 about a second request for a target\n"},
		{55, new(int64(7)), "  dead letters  55 written so far, 7 of them wait for a person; 1 about a second request for a target; millrace deadletter list --subject POINT:77\n"},
		{55, nil, "  dead letters  55 written so far, how many of them wait is not known; 1 about"},
	} {
		s := Status{Type: "POINT", Promotion: 77, DeadWaiting: tt.waiting}
		s.Dead, s.Conflict = tt.dead, min(tt.dead, 1)
		require.Contains(t, textOf(t, s), tt.want)
	}
}

// Without an answer of Redis nothing is known about the readers of a stream, which is not the same
// as no reader. What the ledger knows is shown all the same.
func TestStatusSeparatesNoReadersFromNoAnswer(t *testing.T) {
	t.Parallel()
	away := Status{}
	away.Paid = 41
	away.miss(noRedis, errors.New("connection\nrefused"))
	text := textOf(t, away)
	require.Contains(t, text, "  paid          41\n")
	require.Contains(t, text, "instances: redis does not answer: connection; refused")
	require.NotContains(t, text, "no instance reads")
	require.ErrorIs(t, away.away, pipeline.ErrUnavailable)

	require.Contains(t, textOf(t, Status{Instances: []Instance{}}), "no instance reads its stream")
	require.Contains(t, textOf(t, Status{Instances: []Instance{{InstanceStatus: streams.InstanceStatus{Instance: "a"}}}}), "INSTANCE")
}

func noted(t *testing.T, instance string, slots, held int, n any) streams.InstanceStatus {
	t.Helper()
	note, err := json.Marshal(n)
	require.NoError(t, err)
	return streams.InstanceStatus{Instance: instance, Stream: "s", Group: "g", Slots: slots, InFlight: held, Note: note}
}

// The rate is that of all instances, and each number of one moment has a name of its own.
func TestStatusSaysHowFastAndWhyNot(t *testing.T) {
	t.Parallel()
	one := Note{Client: Client{Breaker: "closed", Limit: 32}, Recent: &payout.RecentStatus{
		Seconds: 60, Settled: 600, Calling: 4, Answers: map[string]int64{"paid": 590, "ambiguous": 20}, Took: []int64{0, 0, 90, 0, 10},
	}}
	two := Note{Client: Client{Breaker: "open", Limit: 32}, Recent: &payout.RecentStatus{Seconds: 30, Settled: 150, Calling: 1, Answers: map[string]int64{"paid": 150}, Took: []int64{0, 0, 100}}}
	s := Status{Type: "POINT", Promotion: 77, Instances: instancesOf([]streams.InstanceStatus{
		noted(t, "a", 4, 7, one), noted(t, "b", 4, 6, two), noted(t, "idle", 4, 0, Note{Client: Client{Breaker: "closed", Limit: 32}}),
		{Instance: "older", Slots: 4, InFlight: 5}, {Instance: "odd", Note: json.RawMessage(`[]`)},
	})}
	s.Pending, s.InStream, s.InRetry, s.InNoQueue, s.InFlight, s.Accepted = 1500, 1000, 300, 200, 12, 3000
	s.Rate = rateOf(s.Instances, 0, time.Now())
	require.InDelta(t, 15, s.Rate.PerSecond, 0.01, "600 in a minute and 150 in half of one")
	require.Equal(t, 5, s.Rate.Calling)
	require.Equal(t, 96, s.Rate.Limit)
	require.Equal(t, payout.LatencyOf(2).Seconds(), s.Rate.P50)
	require.Equal(t, payout.LatencyOf(4).Seconds(), s.Rate.P99)
	require.Equal(t, map[string]string{"b": "breaker open"}, s.Rate.NotTaking)

	now := time.Now()
	s.ExpectedEnd = ExpectedEnd(now, rules.GroupRunning, s.Pending, s.Rate)
	require.WithinDuration(t, now.Add(150*time.Second), s.ExpectedEnd, 2*time.Second, "b calls nothing now, so its five a second do not count")
	require.Zero(t, ExpectedEnd(now, rules.GroupPaused, s.Pending, s.Rate))
	require.Zero(t, ExpectedEnd(now, rules.GroupRunning, s.Pending, nil))
	require.Zero(t, ExpectedEnd(now, rules.GroupRunning, s.Pending, &Rate{}))
	require.Zero(t, ExpectedEnd(now, rules.GroupRunning, 1<<62, &Rate{PerSecond: 0.001}), "no date has such a year")

	text := textOf(t, s)
	for _, want := range []string{
		"  pending            1,500\n", "1,000 next from the stream, 300 next from the retry topic, 0 with a worker, 200 for the feeder to enqueue",
		"    leased           12 by workers, which call the Money API or wait for a call slot",
		"rate               15 payouts a second in the last minute", "expected end       in 2m", "answers            740 paid, 20 ambiguous, in the last minute",
		"half of the calls took at most 2ms, 99 % at most 2ms", "breaker            b: breaker open", "calls now          5; the clients of these instances make at most 96 at once",
		"  INSTANCE  CALLS NOW  CALLS AT MOST  ENTRIES HELD",
	} {
		require.Contains(t, text, want)
	}
	for _, row := range []string{`a +4 +4 +7 `, `b +1 +4 +6 `, `idle +0 +4 +0 `, `older +- +4 +5 `} {
		require.Regexp(t, row, text)
	}
	require.NotContains(t, text, "IN FLIGHT")
	require.Nil(t, rateOf([]Instance{{}}, 0, time.Now()), "no instance says anything")
}

// A promotion whose workers make all the calls that they may is paid as fast as the Money API answers, and only then.
func TestStatusSaysWhatLimitsTheRate(t *testing.T) {
	t.Parallel()
	status := func(calling int, client Client) Status {
		s := Status{Instances: instancesOf([]streams.InstanceStatus{
			noted(t, "a", 8, 9, Note{Client: client, Recent: &payout.RecentStatus{Seconds: 60, Settled: 100, Calling: calling, Took: []int64{0, 100}}}),
			noted(t, "b", 8, 9, Note{Client: Client{Breaker: "open", Limit: 32}, Recent: &payout.RecentStatus{}}),
		})}
		s.Pending, s.Rate = 500, rateOf(s.Instances, 0, time.Now())
		s.LimitedBy = s.limitedBy()
		return s
	}
	closed := Client{Breaker: "closed", Limit: 32}
	full := status(8, closed)
	require.Contains(t, textOf(t, full), "  limited by         the calls at once: 8 of at most 8 run, on 1 instance, and half of them take up to 1ms. More instances")
	require.NotContains(t, textOf(t, status(7, closed)), "limited by")
	require.NotEmpty(t, status(4, Client{Breaker: "closed", Limit: 4}).LimitedBy, "the client makes no more")
	require.Empty(t, status(8, Client{Breaker: "half-open", Limit: 32}).LimitedBy, "what limits it is said by the breaker")
	require.Equal(t, "the Money API: it refused too many calls (429), so about 120 a second begin on 1 instance, and more as it answers them",
		status(1, Client{Breaker: "closed", Limit: 32, Pace: 119.6}).LimitedBy)
	full.Pending = 0
	require.Empty(t, full.limitedBy())
	full.Pending, full.State = 500, rules.GroupPaused
	require.Empty(t, full.limitedBy())
}

// What holds calls back is named in words.
func TestWhyAClientSendsNothing(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Client{
		"":                                      {Breaker: "closed"},
		"breaker half-open":                     {Breaker: "half-open"},
		"the Money API asked all calls to wait": {Breaker: "closed", Throttled: true},
		"the Money API refuses our credential, permission or address": {Breaker: "open", Misconfigured: true},
	} {
		require.Equal(t, want, c.Why())
	}
}

// While no client sends calls, nothing ends, and the state says why.
func TestNoEndWhileNoInstanceCalls(t *testing.T) {
	t.Parallel()
	now := time.Now()
	recent := &payout.RecentStatus{Seconds: 60, Settled: 60}
	stopped := []Instance{{InstanceStatus: streams.InstanceStatus{Instance: "a"}, Note: &Note{Client: Client{Breaker: "open"}, Recent: recent}}}
	s := Status{Rate: rateOf(stopped, 0, now)}
	s.State, s.Pending = rules.GroupRunning, 600
	s.ExpectedEnd = ExpectedEnd(now, s.State, s.Pending, s.Rate)
	require.Zero(t, s.ExpectedEnd)
	require.Equal(t, "not known: breaker open", s.EndText(now))
	require.Equal(t, "RUNNING, breaker open", s.StateText())

	both := append(stopped, Instance{InstanceStatus: streams.InstanceStatus{Instance: "b"}, Note: &Note{Client: Client{Breaker: "closed"}, Recent: recent}})
	s.Rate = rateOf(both, 0, now)
	require.Equal(t, "RUNNING", s.StateText(), "one of them calls")
	require.WithinDuration(t, now.Add(10*time.Minute), ExpectedEnd(now, s.State, s.Pending, s.Rate), 2*time.Second)
}

// A process that has just started doesn't know a minute, and a pause doesn't count into the rate.
func TestARateSaysWhatTimeItIsOf(t *testing.T) {
	t.Parallel()
	now := time.Now()
	instance := func(name string, since time.Duration, recent *payout.RecentStatus) Instance {
		return Instance{InstanceStatus: streams.InstanceStatus{Instance: name}, Note: &Note{Client: Client{Breaker: "closed", Since: now.Add(-since)}, Recent: recent}}
	}
	young := instance("young", 5*time.Second, nil)
	text := textOf(t, Status{Rate: rateOf([]Instance{young}, 0, now)})
	require.Contains(t, text, "0 payouts a second since the start of young 5s ago")
	require.Contains(t, text, "none, since the start of young 5s ago")
	old := instance("old", time.Hour, &payout.RecentStatus{Seconds: 60, Settled: 640, StepSeconds: 2, Steps: []int64{10, 100, 100, 0, 430}})
	require.Equal(t, "in the last minute, without what was before the start of 1 instance", rateOf([]Instance{young, old}, 0, now).WindowText())

	resumed := rateOf([]Instance{old}, 13*time.Second, now)
	require.InDelta(t, 210/12., resumed.PerSecond, 0.01, "what was paid before the pause, and the pause, do not count")
	require.Equal(t, "in the 13s since it was resumed", resumed.WindowText())
	require.Equal(t, "in the last minute", resumed.MinuteText())
	require.Zero(t, rateOf([]Instance{old}, time.Second, now).PerSecond, "no step has ended since")
	require.InDelta(t, 640/60., rateOf([]Instance{old}, time.Hour, now).PerSecond, 0.01)
}

// The client of an instance that runs is known also while nobody reads the stream, and an instance with a lease that is
// not among those that run is named.
func TestStatusOfInstancesThatDoNotRead(t *testing.T) {
	t.Parallel()
	id := payouts.Promotion{Type: "POINT", ID: 77}
	running := map[string]Running{
		"a": {Client: Client{Breaker: "closed", Limit: 8}},
		"b": {Client: Client{Breaker: "open", Limit: 16}, Recent: map[string]payout.RecentStatus{"POINT:77": {Seconds: 60, Calling: 2, Answers: map[string]int64{"ambiguous": 9}}}},
	}
	all := allInstances(nil, running, id)
	s := Status{Type: id.Type, Promotion: id.ID, Instances: []Instance{}, Others: all, Rate: rateOf(all, 0, time.Now()), Gone: gone(map[string]int64{"dead": 2, "b": 1}, running)}
	s.Pending, s.InFlight, s.InRetry, s.WithWorker, s.PerhapsCharged, s.Calling = 10, 3, 10, 3, 5, 3
	text := textOf(t, s)
	for _, want := range []string{
		"9 ambiguous, in the last minute", "b: breaker open", "at most 24 at once",
		"7 next from the retry topic, 3 with a worker", "of them 2 by dead. These are not heard of, because they have ended or do not reach Redis; the leases end", "5, of them 3 by a call that runs now; the service finds out by itself",
		"no instance reads its stream now", "runs, breaker open, calls now 2, calls at most 16 for all promotions", "runs, breaker closed, calls now 0, calls at most 8",
	} {
		require.Contains(t, text, want)
	}
	reader := Instance{InstanceStatus: streams.InstanceStatus{Instance: "a"}, Note: &Note{Client: Client{Breaker: "half-open"}}}
	require.Equal(t, []string{"a", "b"}, []string{allInstances([]Instance{reader}, running, id)[0].Instance, allInstances([]Instance{reader}, running, id)[1].Instance})
	require.Len(t, allInstances([]Instance{reader}, running, id), 2)
}

// A lease of an instance that is not heard of is said to be that, and no call that is known.
func TestTheInstanceWithTheLeaseIsNotHeardOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	x := ledger.Explanation{Now: now, PromotionState: rules.GroupRunning}
	x.State, x.AttemptBy, x.AttemptStartedAt, x.LeaseUntil = rules.Sending, "b", now.Add(-8*time.Second), now.Add(8*time.Second)
	settings := Settings{FeederGrace: 30 * time.Second}
	said := func(running map[string]Running) string { return nextStep(x, settings, nil, nil, goneText(running, x)) }
	require.Contains(t, said(map[string]Running{"a": {}}), "b had begun to call at 2026-03-01T11:59:52.000Z and is not heard of: it has ended, or does not reach Redis; the lease ends in 8s")
	require.Contains(t, said(map[string]Running{"b": {Client: Client{Since: now.Add(-2 * time.Second)}}}), "b had begun to call at 2026-03-01T11:59:52.000Z and was started again 2026-03-01T11:59:58.000Z; the lease ends")
	require.Contains(t, said(map[string]Running{"b": {Client: Client{Since: now.Add(-time.Hour)}}}), "b is calling the Money API")
	require.Contains(t, said(map[string]Running{"b": {Client: Client{Since: now.Add(-7500 * time.Millisecond)}}}), "b is calling the Money API", "clocks differ")
}

// The list knows since when a promotion runs again, so that a pause does not count into its rate.
func TestTheListKnowsOfAResume(t *testing.T) {
	t.Parallel()
	resumed := func(state rules.GroupState, changed time.Duration) time.Duration {
		one := ledger.ListedPromotion{ChangedFor: changed}
		one.State = state
		return listOf([]ledger.ListedPromotion{one}, 1).Promotions[0].resumedFor()
	}
	require.Equal(t, 5*time.Second, resumed(rules.GroupRunning, 5*time.Second))
	require.Zero(t, resumed(rules.GroupRunning, 0), "it was never paused")
	require.Zero(t, resumed(rules.GroupPaused, 5*time.Second))
}
