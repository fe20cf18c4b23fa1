package once

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// at returns a time in seconds after the beginning of a step.
func at(seconds float64) time.Time {
	return time.Unix(1_800_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// settle has n calls for a group begin and end at a time.
func settle(r *recent, group string, n int, now time.Time) {
	for range n {
		r.begin(group, now)
		r.called(Answer{Class: Done}, 100*time.Millisecond, now)
		r.end(group, true, true, now)
	}
}

func TestAnInstanceCountsWhatItDidInTheLastMinute(t *testing.T) {
	t.Parallel()
	var r recent
	r.start(at(0))
	_, any := r.tell(at(2))
	require.False(t, any, "it has done nothing")

	settle(&r, "acme", 4, at(12))
	r.begin("zeta", at(12))
	r.called(Answer{Class: Rejected}, time.Second, at(18))
	r.end("zeta", true, false, at(18))
	r.begin("zeta", at(18))
	r.called(Answer{Class: NotSent}, time.Second, at(19))
	r.end("zeta", false, false, at(19))
	a, any := r.tell(at(21))
	require.True(t, any)
	require.Equal(t, []int64{0, 1, 4}, a.Settled)
	require.Equal(t, []int64{0, 0, 4}, a.Done)
	require.InDelta(t, 21, a.Seconds, 0.01)
	require.InDelta(t, 1, a.StepSeconds, 0.01)
	require.Equal(t, map[string]int64{"done": 4, "rejected": 1, "not_sent": 1}, a.Answers)
	require.InDelta(t, 1.4, a.CallSeconds, 0.001, "without the call that was not sent")
	require.Equal(t, []int64{0, 0, 4}, a.Groups["acme"].Settled)
	require.InDelta(t, 9, a.Groups["acme"].Seconds, 0.01, "since its first call")
	require.Equal(t, []int64{0, 1}, a.Groups["zeta"].Settled)
	require.False(t, a.More)
	require.InDelta(t, 0.1, quantile(a.Took, 0.5).Seconds(), 0.03)
	require.InDelta(t, 1, quantile(a.Took, 0.99).Seconds(), 0.3)

	settled, done, seconds := within(a.Counts, a.StepSeconds, recentWindow)
	require.Equal(t, []int64{5, 4}, []int64{settled, done})
	require.InDelta(t, 21, seconds, 0.01)
	settled, done, seconds = within(a.Counts, a.StepSeconds, 8*time.Second)
	require.Equal(t, []int64{1, 0}, []int64{settled, done}, "in the whole steps of the last 8 s")
	require.InDelta(t, 6, seconds, 0.01)

	a, any = r.tell(at(71))
	require.True(t, any)
	require.EqualValues(t, 1, a.Settled[11], "more than a minute after the first four")
	require.NotContains(t, a.Groups, "acme")
	a, any = r.tell(at(80))
	require.False(t, any)
	require.Empty(t, a.Groups)
	require.Empty(t, r.groups, "they are forgotten")
	require.Empty(t, a.Settled)

	settle(&r, "acme", 1, at(200))
	a, _ = r.tell(at(203))
	require.InDelta(t, 3, a.Seconds, 0.01, "what was before does not slow it down")
}

// An effect whose call takes longer than a minute is one in a minute, and not one in a second.
func TestALongCallIsNoHighRate(t *testing.T) {
	t.Parallel()
	var r recent
	r.start(at(0))
	r.begin("acme", at(0))
	for _, second := range []float64{50, 100, 170} {
		_, any := r.tell(at(second))
		require.True(t, any, "a call runs")
	}
	r.end("acme", true, true, at(180))
	a, _ := r.tell(at(181))
	require.InDelta(t, 60, a.Seconds, 0.01)
	require.InDelta(t, 60, a.Groups["acme"].Seconds, 0.01)
}

// However many groups an instance calls for, it remembers and tells a few: those with the most effects, also if they come last.
func TestTheBusiestGroupsAreTold(t *testing.T) {
	t.Parallel()
	var r recent
	r.start(at(0))
	for round := range 5 {
		now := at(float64(5*round + 1))
		for i := range 1500 {
			settle(&r, fmt.Sprintf("small-%d-%d", round, i), 1, now)
		}
		require.LessOrEqual(t, len(r.groups), groupsCounted)
		if round > 0 {
			settle(&r, "the largest", 50, now)
		}
		a, _ := r.tell(now)
		require.Len(t, a.Groups, groupsTold)
		require.True(t, a.More)
		require.LessOrEqual(t, len(r.groups), groupsKept)
	}
	settle(&r, "the largest", 50, at(23)) // it gets a place when one is free
	a, _ := r.tell(at(24))
	require.EqualValues(t, 50, a.Groups["the largest"].Settled[0])
	require.EqualValues(t, 1500*5+250, func() (n int64) { n, _, _ = within(a.Counts, a.StepSeconds, recentWindow); return n }(), "those of the kind are complete")
}

func TestWhatAnInstanceWaitsForMost(t *testing.T) {
	t.Parallel()
	var b bounds
	require.Empty(t, b.most(at(0)), "it has not begun")
	b.wait(boundLedger, at(1))
	b.wait(boundConcurrency, at(2))
	b.wait(boundLedger, at(12))
	require.Equal(t, boundConcurrency, b.most(at(13)), "10 of 12 s")
	require.Equal(t, boundLedger, b.most(at(14)), "since it was asked")
	b.wait(boundNothingDue, at(14))
	require.Equal(t, boundNothingDue, b.most(at(20)))
}
