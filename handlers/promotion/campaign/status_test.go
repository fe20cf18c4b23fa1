package campaign

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

func textOf(t *testing.T, s Status) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, s.Write(&out))
	return out.String()
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
	s.Rate = rateOf(s.Instances)
	require.InDelta(t, 15, s.Rate.PerSecond, 0.01, "600 in a minute and 150 in half of one")
	require.Equal(t, 5, s.Rate.Calling)
	require.Equal(t, 96, s.Rate.Limit)
	require.Equal(t, payout.LatencyOf(2).Seconds(), s.Rate.P50)
	require.Equal(t, payout.LatencyOf(4).Seconds(), s.Rate.P99)
	require.Equal(t, map[string]string{"b": "breaker open"}, s.Rate.NotTaking)

	now := time.Now()
	s.ExpectedEnd = ExpectedEnd(now, rules.GroupRunning, s.Pending, s.Rate)
	require.WithinDuration(t, now.Add(100*time.Second), s.ExpectedEnd, 2*time.Second)
	require.Zero(t, ExpectedEnd(now, rules.GroupPaused, s.Pending, s.Rate))
	require.Zero(t, ExpectedEnd(now, rules.GroupRunning, s.Pending, nil))
	require.Zero(t, ExpectedEnd(now, rules.GroupRunning, s.Pending, &Rate{}))
	require.Zero(t, ExpectedEnd(now, rules.GroupRunning, 1<<62, &Rate{PerSecond: 0.001}), "no date has such a year")

	text := textOf(t, s)
	for _, want := range []string{
		"  pending       1,500\n", "1,000 in the stream, 300 in the retry topic or with a worker, 200 for the feeder to enqueue",
		"  leased      12 by workers, which call the Money API or wait for a call slot",
		"rate          15 payouts a second in the last minute", "expected end  in 1m", "answers       740 paid, 20 ambiguous, in the last minute",
		"half of the calls took at most 2ms, 99 % at most 2ms", "breaker       b: breaker open", "calls now     5; the clients of these instances make at most 96 at once",
		"  INSTANCE  CALLS NOW  CALLS AT MOST  ENTRIES HELD",
	} {
		require.Contains(t, text, want)
	}
	for _, row := range []string{`a +4 +4 +7 `, `b +1 +4 +6 `, `idle +0 +4 +0 `, `older +- +4 +5 `} {
		require.Regexp(t, row, text)
	}
	require.NotContains(t, text, "IN FLIGHT")
	require.Nil(t, rateOf([]Instance{{}}), "no instance says anything")
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
		require.Equal(t, want, c.why())
	}
}
