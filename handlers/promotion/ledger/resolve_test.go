package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, once, withResults)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		for target := range int64(3) {
			mustAccept(t, l, record(1, target+1))
			endPayout(t, l, record(1, target+1), true)
		}
		require.NoError(t, l.Resolve(t.Context(), key(1, 1), rules.Resolution{Done: true, Receipt: "tx-1", Who: "kim", Why: "in their book"}))
		require.NoError(t, l.Resolve(t.Context(), key(1, 2), rules.Resolution{Who: "kim", Why: "ticket 4711"}))
		require.Equal(t, "paid 1 failed 1 unknown 1 cancelled 0 pending 0", summary(t, l, p))

		x := mustExplain(t, l, key(1, 1))
		require.Equal(t, rules.Success, x.State)
		require.Equal(t, "tx-1", x.Receipt)
		require.Len(t, x.Audit, 1)
		require.Equal(t, "UNKNOWN to SUCCESS, transaction key tx-1", x.Audit[0].Detail)
		require.Equal(t, "kim", x.Audit[0].Who)
		x = mustExplain(t, l, key(1, 2))
		require.Equal(t, rules.Failed, x.State)
		require.False(t, x.MaybeDone)
		require.Len(t, x.DeadLetters, 1, "a resolution is no new dead letter")

		err := l.Resolve(t.Context(), key(1, 1), rules.Resolution{Who: "kim", Why: "no, wait"})
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, "SUCCESS")
		require.ErrorIs(t, l.Resolve(t.Context(), key(1, 9), rules.Resolution{Who: "kim", Why: "x"}), ErrNotFound)
		for _, r := range []rules.Resolution{{Done: true, Who: "a", Why: "b"}, {Receipt: "tx", Who: "a", Why: "b"}, {Who: "a"}, {Why: "b"}} {
			require.ErrorIs(t, l.Resolve(t.Context(), key(1, 3), r), rules.ErrInvalid)
		}
		require.Len(t, mustExplain(t, l, key(1, 1)).Audit, 1)

		// Declared unpaid, it may be replayed. Its key is old, so it is looked up first.
		h.advance(25 * time.Hour)
		got, err := l.Replay(t.Context(), key(1, 2), replayOf("b", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayResult{Outcome: ReplayDone, State: rules.Pending}, got)
		b := mustBegin(t, l, record(1, 2))
		require.Equal(t, rules.Lookup, b.Next)
		require.Equal(t, rules.Errored, mustSettle(t, l, payouts.CallResult{Key: key(1, 2), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.NotDone}}).State)
		require.Equal(t, rules.Send, mustBegin(t, l, record(1, 2)).Next)

		outcomes := map[rules.State]int{}
		_, err = l.Relay(t.Context(), OutboxOutcome, 100, func(_ context.Context, ms []OutboxMessage) error {
			for _, m := range ms {
				outcomes[rules.State(m.Class)]++
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, map[rules.State]int{rules.Unknown: 3, rules.Success: 1, rules.Failed: 1}, outcomes, "a resolution is offered like any other end")
	})
}

// A payout that is only looked up is due again as long as a proxy answers. An operator ends it.
func TestResolveEndsLookups(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, once)
		p := record(1, 1).OfPromotion()
		paid := rules.Resolution{Done: true, Receipt: "tx", Who: "kim", Why: "in their book", Force: true}
		unpaid := rules.Resolution{Who: "kim", Why: "ticket 4711", Force: true, Route: "promotion.unknown"}
		unforced := paid
		unforced.Force = false
		var late BeginResult
		for target := range int64(3) {
			r := record(1, target+1)
			mustAccept(t, l, r)
			late = mustBegin(t, l, r)
			require.Equal(t, rules.Send, late.Next)
			require.ErrorIs(t, l.Resolve(t.Context(), r.Key, paid), ErrRefused, "it is being sent")
			mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: late.Epoch, Outcome: rules.Unclear, Class: "timeout"}})
			for range 5 { // for as long as a proxy answers
				b := mustBegin(t, l, r)
				require.Equal(t, rules.Lookup, b.Next)
				require.ErrorIs(t, l.Resolve(t.Context(), r.Key, paid), ErrRefused, "it is being looked up")
				s := mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Unrecognized, Class: "unrecognized"}})
				require.Equal(t, rules.Ambiguous, s.State)
			}
		}
		mustAccept(t, l, record(1, 4)) // pending
		h.advance(time.Minute)
		listed := func() (targets []int64) {
			require.NoError(t, l.EachLookupOnly(t.Context(), func(r payouts.Row, since time.Duration) error {
				require.Equal(t, rules.Ambiguous, r.State)
				require.GreaterOrEqual(t, since, time.Minute)
				targets = append(targets, r.Target)
				return nil
			}))
			return targets
		}
		require.Equal(t, []int64{1, 2, 3}, listed())

		require.ErrorContains(t, l.Resolve(t.Context(), key(1, 1), unforced), "only force ends that")
		require.NoError(t, l.Resolve(t.Context(), key(1, 1), paid))
		require.NoError(t, l.Resolve(t.Context(), key(1, 2), unpaid))
		require.Equal(t, []int64{3}, listed())
		require.Equal(t, "paid 1 failed 1 unknown 0 cancelled 0 pending 2", summary(t, l, p))
		x := mustExplain(t, l, key(1, 1))
		require.Equal(t, "AMBIGUOUS to SUCCESS, transaction key tx", x.Audit[0].Detail)
		require.Empty(t, x.DeadLetters)
		x = mustExplain(t, l, key(1, 2))
		require.Equal(t, "AMBIGUOUS to FAILED: not charged", x.Audit[0].Detail)
		require.Len(t, x.DeadLetters, 1, "the dead letter that is replayed if it is to be paid after all")
		require.Equal(t, []string{rules.ClassResolved, "ticket 4711", "promotion.unknown"}, []string{x.DeadLetters[0].Class, x.DeadLetters[0].Error, x.DeadLetters[0].Route})

		require.Equal(t, rules.Ack, mustBegin(t, l, record(1, 1)).Next, "its retry record comes for nothing")
		require.True(t, mustSettle(t, l, payouts.CallResult{Key: key(1, 3), CallResult: rules.CallResult{Epoch: late.Epoch, Outcome: rules.Done, Receipt: "tx-3"}}).Stale)
		unpaid.Force = false
		require.ErrorContains(t, l.Resolve(t.Context(), key(1, 3), unpaid), "a late answer states a charge")

		got, err := l.Replay(t.Context(), key(1, 2), replayOf("b", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayResult{Outcome: ReplayDone, State: rules.Pending}, got)
		require.Equal(t, rules.Send, mustBegin(t, l, record(1, 2)).Next)
	})
}
