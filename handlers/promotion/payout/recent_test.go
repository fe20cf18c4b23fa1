package payout

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// What is older than a minute is forgotten, and a call counts from its begin to its end.
func TestRecentIsTheLastMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Recent
		one, other := payouts.Promotion{Type: "POINT", ID: 1}, payouts.Promotion{Type: "POINT", ID: 2}
		_, known := r.Status(one)
		require.False(t, known)

		end := r.begin(one)
		s, known := r.Status(one)
		require.True(t, known)
		require.Equal(t, 1, s.Calling)
		require.Empty(t, s.Answers, "it has not ended")
		time.Sleep(10 * time.Second)
		end(money.Answer{Class: money.Paid})
		r.settled(one, ledger.SettleResult{State: rules.Success})
		r.begin(one)(money.Answer{Class: money.NotSent})
		r.begin(other)(money.Answer{Class: money.Ambiguous})
		r.settled(other, ledger.SettleResult{State: rules.Ambiguous})

		s, _ = r.Status(one)
		require.Zero(t, s.Calling)
		require.EqualValues(t, 1, s.Settled)
		require.Equal(t, map[string]int64{"paid": 1, "not_sent": 1}, s.Answers)
		require.InDelta(t, 10, s.Seconds, 0.001)
		var calls int64
		for i, n := range s.Took {
			if calls += n; n > 0 {
				require.Less(t, 10*time.Second, LatencyOf(i))
				require.GreaterOrEqual(t, 10*time.Second, LatencyOf(i-1))
			}
		}
		require.EqualValues(t, 1, calls, "what was not sent took no time of the Money API")
		s, _ = r.Status(other)
		require.Zero(t, s.Settled, "it is not settled")

		time.Sleep(recentWindow - recentStep - time.Second)
		s, _ = r.Status(one)
		require.EqualValues(t, 1, s.Settled)
		time.Sleep(2 * recentStep)
		_, known = r.Status(one)
		require.False(t, known)
		require.Len(t, r.all, 2)
		time.Sleep(recentWindow)
		r.settled(payouts.Promotion{Type: "POINT", ID: 3}, ledger.SettleResult{})
		r.begin(payouts.Promotion{Type: "POINT", ID: 3})
		require.Len(t, r.all, 1, "promotions of the past are forgotten")
	})
}

// What was settled since a moment is known in steps, and of all promotions those are kept that had something last.
func TestRecentSinceAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Recent
		one, other := payouts.Promotion{Type: "POINT", ID: 1}, payouts.Promotion{Type: "POINT", ID: 2}
		settle := func(p payouts.Promotion, n int) {
			for range n {
				r.settled(p, ledger.SettleResult{State: rules.Success})
			}
		}
		settle(one, 7)
		time.Sleep(20 * time.Second) // as in a pause
		settle(one, 5)
		time.Sleep(recentStep)
		settle(one, 3)
		time.Sleep(time.Second)
		settle(other, 1)

		s, _ := r.Status(one)
		n, seconds := s.SettledWithin(7 * time.Second)
		require.EqualValues(t, 8, n, "nothing of before the pause")
		require.InDelta(t, 6, seconds, 0.001)
		_, seconds = s.SettledWithin(500 * time.Millisecond)
		require.Zero(t, seconds, "the current step is longer than that")
		n, _ = s.SettledWithin(time.Hour)
		require.EqualValues(t, 15, n)
		all := r.Latest(1)
		require.Len(t, all, 1)
		require.Len(t, r.Latest(5), 2)
	})
}
