package ledger

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func replayOf(id string, generation int) Replay {
	return Replay{DeadLetter: id, Generation: generation, Who: "kim", Why: "the target exists now"}
}

func summary(t *testing.T, l *Ledger, p payouts.Promotion) string {
	t.Helper()
	c, err := l.Status(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, c.Accepted, c.Paid+c.Failed+c.Unknown+c.Cancelled+c.Pending)
	return fmt.Sprintf("paid %d failed %d unknown %d cancelled %d pending %d", c.Paid, c.Failed, c.Unknown, c.Cancelled, c.Pending)
}

func TestReplayOfAFailedPayout(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l, r := h.open(t, once), record(1, 7)
		p := r.OfPromotion()
		mustAccept(t, l, r)
		first := mustBegin(t, l, r)
		mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: first.Epoch, Outcome: rules.Rejected, Class: "no_such_target"}})
		require.Equal(t, "paid 0 failed 1 unknown 0 cancelled 0 pending 0", summary(t, l, p))

		dry := Replay{DeadLetter: "a", Generation: 1, DryRun: true}
		for range 2 {
			got, err := l.Replay(t.Context(), r.Key, dry)
			require.NoError(t, err)
			require.Equal(t, ReplayResult{Outcome: ReplayDone, State: rules.Pending}, got)
		}
		require.Equal(t, "paid 0 failed 1 unknown 0 cancelled 0 pending 0", summary(t, l, p), "nothing was done")
		require.Empty(t, mustExplain(t, l, r.Key).Audit)
		got, err := l.Replay(t.Context(), r.Key, replayOf("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayResult{Outcome: ReplayDone, State: rules.Pending}, got)
		require.Equal(t, "paid 0 failed 0 unknown 0 cancelled 0 pending 1", summary(t, l, p))
		items, err := l.FeedUnqueued(t.Context(), p, 10)
		require.NoError(t, err)
		require.Len(t, items, 1)
		require.Equal(t, r.Payload, items[0].Payload)
		work, err := l.Unfinished(t.Context())
		require.NoError(t, err)
		require.Len(t, work, 1, "the feeder finds it")

		again, err := l.Replay(t.Context(), r.Key, replayOf("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayResult{Outcome: ReplayAlready, State: rules.Pending}, again)
		again, err = l.Replay(t.Context(), r.Key, dry)
		require.NoError(t, err)
		require.Equal(t, ReplayResult{Outcome: ReplayAlready, State: rules.Pending}, again)
		early, err := l.Replay(t.Context(), r.Key, replayOf("a", 2))
		require.NoError(t, err)
		require.Equal(t, ReplayRefused, early.Outcome)
		require.Contains(t, early.Reason, "PENDING")

		late := mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: first.Epoch, Outcome: rules.Done, Receipt: "late"}})
		require.True(t, late.Stale, "an answer to a call before the replay is evidence only")
		second := mustBegin(t, l, r)
		require.Equal(t, rules.Send, second.Next)
		require.Equal(t, first.Request, second.Request)
		require.Equal(t, 1, second.Attempt)
		mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: second.Epoch, Outcome: rules.Rejected, Class: "no_such_target"}})
		require.Equal(t, "paid 0 failed 1 unknown 0 cancelled 0 pending 0", summary(t, l, p), "it failed again, and counts once")

		again, err = l.Replay(t.Context(), r.Key, replayOf("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayResult{Outcome: ReplayAlready, State: rules.Failed}, again)
		got, err = l.Replay(t.Context(), r.Key, replayOf("a", 2))
		require.NoError(t, err)
		require.Equal(t, ReplayDone, got.Outcome, "a refusal used nothing up")
		third := mustBegin(t, l, r)
		mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: third.Epoch, Outcome: rules.Done, Receipt: "tx"}})
		require.Equal(t, "paid 1 failed 0 unknown 0 cancelled 0 pending 0", summary(t, l, p))
		paid, err := l.Replay(t.Context(), r.Key, replayOf("a", 3))
		require.NoError(t, err)
		require.Equal(t, ReplayRefused, paid.Outcome)
		require.Contains(t, paid.Reason, "tx")

		x := mustExplain(t, l, r.Key)
		require.Len(t, x.Audit, 2, "one line a replay that had an effect")
		require.Equal(t, "kim: the target exists now: replay: dead letter a, generation 1: FAILED to PENDING",
			fmt.Sprintf("%s: %s: %s: %s", x.Audit[0].Who, x.Audit[0].Why, x.Audit[0].Action, x.Audit[0].Detail))
		require.Len(t, x.DeadLetters, 2)
		require.Equal(t, "no_such_target", x.DeadLetters[0].Class)
		require.Equal(t, r.Origin, x.DeadLetters[0].Origin)
		require.Len(t, x.Calls, 4)
	})
}

func TestReplayIsRefused(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, once)
		for target := range int64(3) {
			mustAccept(t, l, record(1, target+1))
			endPayout(t, l, record(1, target+1), target == 1)
		}
		got, err := l.Replay(t.Context(), key(1, 1), replayOf("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayDone, got.Outcome)
		other, err := l.Replay(t.Context(), key(1, 3), replayOf("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayRefused, other.Outcome, "the dead letter belongs to another payout")

		_, err = l.Cancel(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, operator)
		require.NoError(t, err)
		for target := range int64(3) {
			got, err := l.Replay(t.Context(), key(1, target+1), replayOf(fmt.Sprint("c", target), 1))
			require.NoError(t, err)
			require.Equal(t, ReplayRefused, got.Outcome)
			require.Contains(t, got.Reason, "cancelled")
		}
		require.Equal(t, "paid 0 failed 1 unknown 1 cancelled 1 pending 0", summary(t, l, payouts.Promotion{Type: "POINT", ID: 1}))

		_, err = l.Replay(t.Context(), key(1, 99), replayOf("z", 1))
		require.ErrorIs(t, err, ErrNotFound)
		for _, r := range []Replay{{Generation: 1, Who: "a", Why: "b"}, {DeadLetter: "x", Who: "a", Why: "b"},
			{DeadLetter: "x", Generation: 1, Why: "b"}, {DeadLetter: "x", Generation: 1, Who: "a"}} {
			_, err = l.Replay(t.Context(), key(1, 1), r)
			require.ErrorIs(t, err, rules.ErrInvalid)
		}
	})
}

// A cancel takes effect at one moment. It cancels the payouts that were replayed before, and no
// payout is replayed after it.
func TestCancelAndReplaysAtOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t, once), h.open(t, once, as("b"))}
		const n = 40
		for target := range int64(n) {
			mustAccept(t, ledgers[0], record(1, target+1))
			endPayout(t, ledgers[0], record(1, target+1), false)
		}
		var replayed atomic.Int64
		var g errgroup.Group
		for target := range int64(n) {
			g.Go(func() error {
				got, err := ledgers[target%2].Replay(t.Context(), key(1, target+1), replayOf(fmt.Sprint(target), 1))
				if got.Outcome == ReplayDone {
					replayed.Add(1)
				}
				return err
			})
		}
		g.Go(func() error {
			_, err := ledgers[1].Cancel(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, operator)
			return err
		})
		require.NoError(t, g.Wait())
		require.Equal(t, fmt.Sprintf("paid 0 failed %d unknown 0 cancelled %d pending 0", n-replayed.Load(), replayed.Load()),
			summary(t, ledgers[0], payouts.Promotion{Type: "POINT", ID: 1}))
	})
}

// A dead letter has one effect, whichever replay is first.
func TestReplayOfOneDeadLetterByMany(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t, once), h.open(t, once, as("b"))}
		for target := range int64(8) {
			mustAccept(t, ledgers[0], record(1, target+1))
			endPayout(t, ledgers[0], record(1, target+1), target%2 == 0)
		}
		var done, already atomic.Int64
		var g errgroup.Group
		for i := range 64 {
			g.Go(func() error {
				target := int64(i%8 + 1)
				got, err := ledgers[i/8%2].Replay(t.Context(), key(1, target), replayOf(fmt.Sprint("dead-letter-", target), 1))
				switch got.Outcome {
				case ReplayDone:
					done.Add(1)
				case ReplayAlready:
					already.Add(1)
				case ReplayRefused:
					return errors.New(got.Reason)
				}
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.Equal(t, int64(8), done.Load())
		require.Equal(t, int64(56), already.Load())
		require.Equal(t, "paid 0 failed 0 unknown 0 cancelled 0 pending 8", summary(t, ledgers[0], payouts.Promotion{Type: "POINT", ID: 1}))
	})
}

func TestReplayOfAnOldUnknownPayoutIsLookedUp(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, once)
		for target, want := range map[int64]rules.Next{1: rules.Send, 2: rules.Lookup} {
			r := record(1, target)
			mustAccept(t, l, r)
			endPayout(t, l, r, true)
			if want == rules.Lookup {
				h.advance(25 * time.Hour)
			}
			got, err := l.Replay(t.Context(), r.Key, replayOf(fmt.Sprint(target), 1))
			require.NoError(t, err)
			require.Equal(t, ReplayResult{Outcome: ReplayDone, State: rules.Ambiguous}, got)
			require.Equal(t, want, mustBegin(t, l, r).Next)
			h.skew.Store(0)
		}
	})
}

// If the row of the audit can't be written, nothing is written.
func TestOperatorActionsAndAuditAreOneTransaction(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, once)
		mustAccept(t, l, record(1, 1))
		endPayout(t, l, record(1, 1), true)
		mustAccept(t, l, record(1, 2))
		before := mustExplain(t, l, key(1, 1)).Row
		other := mustExplain(t, l, key(1, 2)).Row
		rename := func(from, to string) {
			require.NoError(t, l.store.update(t.Context(), nil, func(q querier, _ time.Time) error {
				_, err := q.exec(t.Context(), "ALTER TABLE "+from+" RENAME TO "+to)
				return err
			}))
		}
		rename("ledger_audit", "hidden")
		require.Error(t, l.Resolve(t.Context(), key(1, 1), rules.Resolution{Who: "kim", Why: "x"}))
		_, err := l.Replay(t.Context(), key(1, 1), replayOf("a", 1))
		require.Error(t, err)
		_, err = l.Rebuild(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, Steering{Who: "kim", Why: "x"})
		require.Error(t, err)
		rename("hidden", "ledger_audit")
		require.Equal(t, before, mustExplain(t, l, key(1, 1)).Row)
		require.Equal(t, other, mustExplain(t, l, key(1, 2)).Row)
		got, err := l.Replay(t.Context(), key(1, 1), replayOf("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayDone, got.Outcome, "the dead letter was not used up")
	})
}

func TestRebuild(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l, p := h.open(t), payouts.Promotion{Type: "POINT", ID: 1}
		acceptMany(t, l, 1, 20)
		acceptMany(t, l, 2, 1)
		same, err := l.RecordIncarnation(t.Context(), p, "one")
		require.NoError(t, err)
		require.True(t, same)
		b := mustBegin(t, l, record(1, 1)) // its worker has the lease
		n, err := l.Rebuild(t.Context(), p, Steering{Who: "kim", Why: "the stream was deleted by hand"})
		require.NoError(t, err)
		require.Equal(t, int64(19), n)
		items, err := l.FeedUnqueued(t.Context(), p, 100)
		require.NoError(t, err)
		require.Len(t, items, 19)
		marked, err := l.MarkEnqueued(t.Context(), p, "one", items)
		require.NoError(t, err)
		require.Equal(t, 19, marked, "the stream on record is still the same")
		require.Equal(t, rules.Ack, mustSettle(t, l, payouts.CallResult{Key: key(1, 1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "x"}}).Next)
		items, err = l.FeedUnqueued(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}, 100)
		require.NoError(t, err)
		require.Empty(t, items, "another promotion's hints are its own")
		_, err = l.Rebuild(t.Context(), payouts.Promotion{Type: "POINT", ID: 9}, Steering{Who: "kim", Why: "x"})
		require.ErrorIs(t, err, ErrNotFound)
		_, err = l.Rebuild(t.Context(), p, Steering{Who: "", Why: "x"})
		require.ErrorIs(t, err, rules.ErrInvalid)
	})
}

func TestUnknownListsEveryUnknownPayoutOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, once)
		const n = unknownPage + 50
		acceptMany(t, l, 2, n)
		var g errgroup.Group
		g.SetLimit(64)
		for i := range int64(n) {
			g.Go(func() error {
				o := rules.Unclear
				if i%10 == 9 {
					o = rules.Rejected
				}
				for { // a send, and a lookup of what may have been charged
					b, err := l.Begin(t.Context(), record(2, i+1))
					if err != nil || b.Next == rules.Ack {
						return err
					}
					if _, err := l.Settle(t.Context(), payouts.CallResult{Key: key(2, i+1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: o, Class: "timeout"}}); err != nil {
						return err
					}
				}
			})
		}
		require.NoError(t, g.Wait())
		_, err := l.Replay(t.Context(), key(2, 1), replayOf("a", 1))
		require.NoError(t, err)
		_, err = l.Replay(t.Context(), key(2, 2), replayOf("b", 1))
		require.NoError(t, err)
		endPayout(t, l, record(2, 2), true) // UNKNOWN again: two dead letters
		require.NoError(t, l.Resolve(t.Context(), key(2, 3), rules.Resolution{Who: "kim", Why: "x"}))

		last, seen := int64(0), 0
		require.NoError(t, l.EachUnknown(t.Context(), func(r payouts.Row, since time.Duration) error {
			require.Less(t, since, time.Minute)
			require.Equal(t, rules.Unknown, r.State)
			require.Greater(t, r.Target, last)
			last = r.Target
			seen++
			return nil
		}))
		require.Equal(t, n-n/10-2, seen)
		require.ErrorIs(t, l.EachUnknown(t.Context(), func(payouts.Row, time.Duration) error { return errStale }), errStale)
	})
}

func TestExplainForeseesTheNextBegin(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l, r := h.open(t, lateRetries), record(1, 1)
		mustAccept(t, l, r)
		x := mustExplain(t, l, r.Key)
		require.Equal(t, rules.Send, x.NextStep)
		require.Equal(t, x.Now, x.NextStepAt)
		b := mustBegin(t, l, r)
		x = mustExplain(t, l, r.Key)
		require.Equal(t, rules.Send, x.NextStep)
		require.Equal(t, x.LeaseUntil, x.NextStepAt, "not while its worker has it")
		mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Unclear}})
		x = mustExplain(t, l, r.Key)
		require.Equal(t, rules.Send, x.NextStep)
		require.Equal(t, x.NextAttemptAt, x.NextStepAt)
		require.NoError(t, l.Pause(t.Context(), r.OfPromotion(), operator))
		require.Equal(t, rules.Send, mustExplain(t, l, r.Key).NextStep, "when it is resumed")
		h.advance(25 * time.Hour)
		require.Equal(t, rules.Lookup, mustExplain(t, l, r.Key).NextStep, "its key is too old")
		h.skew.Store(0)
		_, err := l.Cancel(t.Context(), r.OfPromotion(), operator)
		require.NoError(t, err)
		require.Equal(t, rules.Lookup, mustExplain(t, l, r.Key).NextStep, "cancelled")
		require.NoError(t, h.settle(t, l, r))
		x = mustExplain(t, l, r.Key)
		require.Zero(t, x.NextStep)
		require.Zero(t, x.NextStepAt)
	})
}

// settle ends an ambiguous payout as paid.
func (h *testDB) settle(t *testing.T, l *Ledger, r payouts.Record) error {
	h.advance(time.Minute)
	b := mustBegin(t, l, r)
	_, err := l.Settle(t.Context(), payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "tx"}})
	return err
}
