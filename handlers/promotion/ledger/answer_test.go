package ledger

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestReplayTable: every shape of a row, in every state of its promotion.
func TestReplayTable(t *testing.T) {
	t.Parallel()
	can := map[string]State{"failed": Pending, "unknown": Ambiguous}
	for name, row := range shapes() {
		for _, promotion := range []PromotionState{PromotionRunning, PromotionPaused, PromotionCancelled} {
			next, eff, d := testPolicy().apply(row, event{kind: evReplay, now: t0, promotion: promotion})
			checkStep(t, row, next, eff, d)
			to, ok := can[name]
			if !ok || promotion == PromotionCancelled {
				require.NotEmpty(t, d.refused, name)
				require.Equal(t, row, next, name)
				require.Equal(t, effects{}, eff, name)
				continue
			}
			require.Empty(t, d.refused, name)
			require.Equal(t, effects{left: row.State}, eff, name)
			want := row
			want.State, want.Hint, want.HintDue, want.Version, want.Epoch = to, HintNone, t0, row.Version+1, row.Epoch+1
			want.Attempts, want.Asks, want.Failures, want.SettledAt = 0, 0, 0, time.Time{}
			require.Equal(t, want, next, "%s: nothing else changes, above all not whether and since when it may be charged", name)

			// Within the key's time it is sent again; after it it is looked up first.
			_, _, d = testPolicy().apply(next, event{kind: evBegin, now: t0, promotion: PromotionRunning, same: true})
			require.Equal(t, Send, d.next, name)
			_, _, d = testPolicy().apply(next, event{kind: evBegin, now: t0.Add(2 * time.Hour), promotion: PromotionRunning, same: true})
			require.Equal(t, Ask, d.next, name)
		}
	}
	spent := shapes()["unknown"]
	spent.Attempts, spent.Asks, spent.Released, spent.Failures = 3, 3, 8, 6
	next, _, _ := testPolicy().apply(spent, event{kind: evReplay, now: t0, promotion: PromotionRunning})
	require.Zero(t, next.Attempts+next.Asks+next.Released+next.Failures, "all attempts are before it again")
}

func letter(id string, generation int) Replay {
	return Replay{Letter: id, Generation: generation, Who: "kim", Why: "the target exists now"}
}

func summary(t *testing.T, l *Ledger, p Promotion) string {
	t.Helper()
	c, err := l.Status(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, c.Accepted, c.Paid+c.Failed+c.Unknown+c.Cancelled+c.Pending)
	return fmt.Sprintf("paid %d failed %d unknown %d cancelled %d pending %d", c.Paid, c.Failed, c.Unknown, c.Cancelled, c.Pending)
}

func TestReplayOfAFailedPayout(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l, r := h.open(t, once), record(1, 7)
		p := r.Of()
		mustAccept(t, l, r)
		first := mustBegin(t, l, r)
		mustSettle(t, l, Result{Key: r.Key, Epoch: first.Epoch, Outcome: Rejected, Class: "no_such_target"})
		require.Equal(t, "paid 0 failed 1 unknown 0 cancelled 0 pending 0", summary(t, l, p))

		dry := Replay{Letter: "a", Generation: 1, DryRun: true}
		for range 2 {
			got, err := l.Replay(t.Context(), r.Key, dry)
			require.NoError(t, err)
			require.Equal(t, Replayed{Outcome: ReplayDone, State: Pending}, got)
		}
		require.Equal(t, "paid 0 failed 1 unknown 0 cancelled 0 pending 0", summary(t, l, p), "nothing was done")
		require.Empty(t, mustExplain(t, l, r.Key).Audit)
		got, err := l.Replay(t.Context(), r.Key, letter("a", 1))
		require.NoError(t, err)
		require.Equal(t, Replayed{Outcome: ReplayDone, State: Pending}, got)
		require.Equal(t, "paid 0 failed 0 unknown 0 cancelled 0 pending 1", summary(t, l, p))
		fed, err := l.FeedNone(t.Context(), p, 10)
		require.NoError(t, err)
		require.Len(t, fed, 1)
		require.Equal(t, r.Payload, fed[0].Payload)
		work, err := l.Unfinished(t.Context())
		require.NoError(t, err)
		require.Len(t, work, 1, "the feeder finds it")

		again, err := l.Replay(t.Context(), r.Key, letter("a", 1))
		require.NoError(t, err)
		require.Equal(t, Replayed{Outcome: ReplayAlready, State: Pending}, again)
		again, err = l.Replay(t.Context(), r.Key, dry)
		require.NoError(t, err)
		require.Equal(t, Replayed{Outcome: ReplayAlready, State: Pending}, again)
		early, err := l.Replay(t.Context(), r.Key, letter("a", 2))
		require.NoError(t, err)
		require.Equal(t, ReplayRefused, early.Outcome)
		require.Contains(t, early.Reason, "PENDING")

		late := mustSettle(t, l, Result{Key: r.Key, Epoch: first.Epoch, Outcome: Paid, TransactionKey: "late"})
		require.True(t, late.Stale, "an answer to a call before the replay is evidence only")
		second := mustBegin(t, l, r)
		require.Equal(t, Send, second.Next)
		require.Equal(t, first.Request, second.Request)
		require.Equal(t, 1, second.Attempt)
		mustSettle(t, l, Result{Key: r.Key, Epoch: second.Epoch, Outcome: Rejected, Class: "no_such_target"})
		require.Equal(t, "paid 0 failed 1 unknown 0 cancelled 0 pending 0", summary(t, l, p), "it failed again, and counts once")

		again, err = l.Replay(t.Context(), r.Key, letter("a", 1))
		require.NoError(t, err)
		require.Equal(t, Replayed{Outcome: ReplayAlready, State: Failed}, again)
		got, err = l.Replay(t.Context(), r.Key, letter("a", 2))
		require.NoError(t, err)
		require.Equal(t, ReplayDone, got.Outcome, "a refusal used nothing up")
		third := mustBegin(t, l, r)
		mustSettle(t, l, Result{Key: r.Key, Epoch: third.Epoch, Outcome: Paid, TransactionKey: "tx"})
		require.Equal(t, "paid 1 failed 0 unknown 0 cancelled 0 pending 0", summary(t, l, p))
		paid, err := l.Replay(t.Context(), r.Key, letter("a", 3))
		require.NoError(t, err)
		require.Equal(t, ReplayRefused, paid.Outcome)
		require.Contains(t, paid.Reason, "tx")

		x := mustExplain(t, l, r.Key)
		require.Len(t, x.Audit, 2, "one line a replay that had an effect")
		require.Equal(t, "kim: the target exists now: replay: letter a, generation 1: FAILED to PENDING",
			fmt.Sprintf("%s: %s: %s: %s", x.Audit[0].Who, x.Audit[0].Why, x.Audit[0].Action, x.Audit[0].Detail))
		require.Len(t, x.Letters, 2)
		require.Equal(t, "no_such_target", x.Letters[0].Class)
		require.Equal(t, r.Origin, x.Letters[0].Origin)
		require.Len(t, x.Calls, 4)
	})
}

func TestReplayIsRefused(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t, once)
		for target := range int64(3) {
			mustAccept(t, l, record(1, target+1))
			give(t, l, record(1, target+1), target == 1)
		}
		got, err := l.Replay(t.Context(), key(1, 1), letter("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayDone, got.Outcome)
		other, err := l.Replay(t.Context(), key(1, 3), letter("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayRefused, other.Outcome, "the letter belongs to another payout")

		_, err = l.Cancel(t.Context(), Promotion{"POINT", 1}, ann)
		require.NoError(t, err)
		for target := range int64(3) {
			got, err := l.Replay(t.Context(), key(1, target+1), letter(fmt.Sprint("c", target), 1))
			require.NoError(t, err)
			require.Equal(t, ReplayRefused, got.Outcome)
			require.Contains(t, got.Reason, "cancelled")
		}
		require.Equal(t, "paid 0 failed 1 unknown 1 cancelled 1 pending 0", summary(t, l, Promotion{"POINT", 1}))

		_, err = l.Replay(t.Context(), key(1, 99), letter("z", 1))
		require.ErrorIs(t, err, ErrNotFound)
		for _, r := range []Replay{{Generation: 1, Who: "a", Why: "b"}, {Letter: "x", Who: "a", Why: "b"},
			{Letter: "x", Generation: 1, Why: "b"}, {Letter: "x", Generation: 1, Who: "a"}} {
			_, err = l.Replay(t.Context(), key(1, 1), r)
			require.ErrorIs(t, err, ErrInvalid)
		}
	})
}

// TestCancelAndReplaysAtOnce: a cancel is a line in time. What was replayed before it is cancelled by it, and nothing is
// replayed after it.
func TestCancelAndReplaysAtOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		ledgers := []*Ledger{h.open(t, once), h.open(t, once, as("b"))}
		const n = 40
		for target := range int64(n) {
			mustAccept(t, ledgers[0], record(1, target+1))
			give(t, ledgers[0], record(1, target+1), false)
		}
		var replayed atomic.Int64
		var g errgroup.Group
		for target := range int64(n) {
			g.Go(func() error {
				got, err := ledgers[target%2].Replay(t.Context(), key(1, target+1), letter(fmt.Sprint(target), 1))
				if got.Outcome == ReplayDone {
					replayed.Add(1)
				}
				return err
			})
		}
		g.Go(func() error {
			_, err := ledgers[1].Cancel(t.Context(), Promotion{"POINT", 1}, ann)
			return err
		})
		require.NoError(t, g.Wait())
		require.Equal(t, fmt.Sprintf("paid 0 failed %d unknown 0 cancelled %d pending 0", n-replayed.Load(), replayed.Load()),
			summary(t, ledgers[0], Promotion{"POINT", 1}))
	})
}

// TestReplayOfOneLetterByMany: whoever is first, the letter has one effect.
func TestReplayOfOneLetterByMany(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		ledgers := []*Ledger{h.open(t, once), h.open(t, once, as("b"))}
		for target := range int64(8) {
			mustAccept(t, ledgers[0], record(1, target+1))
			give(t, ledgers[0], record(1, target+1), target%2 == 0)
		}
		var done, already atomic.Int64
		var g errgroup.Group
		for i := range 64 {
			g.Go(func() error {
				target := int64(i%8 + 1)
				got, err := ledgers[i/8%2].Replay(t.Context(), key(1, target), letter(fmt.Sprint("letter-", target), 1))
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
		require.Equal(t, "paid 0 failed 0 unknown 0 cancelled 0 pending 8", summary(t, ledgers[0], Promotion{"POINT", 1}))
	})
}

func TestReplayOfAnUnknownPayoutOnlyAsksAfterTheKeysTime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t, once)
		for target, want := range map[int64]Next{1: Send, 2: Ask} {
			r := record(1, target)
			mustAccept(t, l, r)
			give(t, l, r, true)
			if want == Ask {
				h.advance(25 * time.Hour)
			}
			got, err := l.Replay(t.Context(), r.Key, letter(fmt.Sprint(target), 1))
			require.NoError(t, err)
			require.Equal(t, Replayed{Outcome: ReplayDone, State: Ambiguous}, got)
			require.Equal(t, want, mustBegin(t, l, r).Next)
			h.skew.Store(0)
		}
	})
}

// TestAnswersAndTheirAuditAreOneTransaction: when the line can't be written, nothing is.
func TestAnswersAndTheirAuditAreOneTransaction(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t, once)
		mustAccept(t, l, record(1, 1))
		give(t, l, record(1, 1), true)
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
		require.Error(t, l.Resolve(t.Context(), key(1, 1), Resolution{Who: "kim", Why: "x"}))
		_, err := l.Replay(t.Context(), key(1, 1), letter("a", 1))
		require.Error(t, err)
		_, err = l.Rebuild(t.Context(), Promotion{"POINT", 1}, "kim", "x")
		require.Error(t, err)
		rename("hidden", "ledger_audit")
		require.Equal(t, before, mustExplain(t, l, key(1, 1)).Row)
		require.Equal(t, other, mustExplain(t, l, key(1, 2)).Row)
		got, err := l.Replay(t.Context(), key(1, 1), letter("a", 1))
		require.NoError(t, err)
		require.Equal(t, ReplayDone, got.Outcome, "the letter was not used up")
	})
}

func TestRebuild(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l, p := h.open(t), Promotion{"POINT", 1}
		acceptMany(t, l, 1, 20)
		acceptMany(t, l, 2, 1)
		same, err := l.Adopt(t.Context(), p, "one")
		require.NoError(t, err)
		require.True(t, same)
		b := mustBegin(t, l, record(1, 1)) // its hint is with its worker
		n, err := l.Rebuild(t.Context(), p, "kim", "the stream was deleted by hand")
		require.NoError(t, err)
		require.Equal(t, int64(19), n)
		fed, err := l.FeedNone(t.Context(), p, 100)
		require.NoError(t, err)
		require.Len(t, fed, 19)
		marked, err := l.MarkFed(t.Context(), p, "one", fed)
		require.NoError(t, err)
		require.Equal(t, 19, marked, "the stream on record is still the same")
		require.Equal(t, Ack, mustSettle(t, l, Result{Key: key(1, 1), Epoch: b.Epoch, Outcome: Paid, TransactionKey: "x"}).Next)
		fed, err = l.FeedNone(t.Context(), Promotion{"POINT", 2}, 100)
		require.NoError(t, err)
		require.Empty(t, fed, "another promotion's hints are its own")
		_, err = l.Rebuild(t.Context(), Promotion{"POINT", 9}, "kim", "x")
		require.ErrorIs(t, err, ErrNotFound)
		_, err = l.Rebuild(t.Context(), p, "", "x")
		require.ErrorIs(t, err, ErrInvalid)
	})
}

func TestUnknownListsEveryUnknownPayoutOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t, once)
		const n = unknownPage + 50
		acceptMany(t, l, 2, n)
		var g errgroup.Group
		g.SetLimit(64)
		for i := range int64(n) {
			g.Go(func() error {
				o := PerhapsCharged
				if i%10 == 9 {
					o = Rejected
				}
				for { // a send, and a lookup of what may have been charged
					b, err := l.Begin(t.Context(), record(2, i+1))
					if err != nil || b.Next == Ack {
						return err
					}
					if _, err := l.Settle(t.Context(), Result{Key: key(2, i+1), Epoch: b.Epoch, Outcome: o, Class: "timeout"}); err != nil {
						return err
					}
				}
			})
		}
		require.NoError(t, g.Wait())
		_, err := l.Replay(t.Context(), key(2, 1), letter("a", 1))
		require.NoError(t, err)
		_, err = l.Replay(t.Context(), key(2, 2), letter("b", 1))
		require.NoError(t, err)
		give(t, l, record(2, 2), true) // UNKNOWN again: two letters
		require.NoError(t, l.Resolve(t.Context(), key(2, 3), Resolution{Who: "kim", Why: "x"}))

		last, seen := int64(0), 0
		require.NoError(t, l.Unknown(t.Context(), func(r Row, since time.Duration) error {
			require.Less(t, since, time.Minute)
			require.Equal(t, Unknown, r.State)
			require.Greater(t, r.Target, last)
			last = r.Target
			seen++
			return nil
		}))
		require.Equal(t, n-n/10-2, seen)
		require.ErrorIs(t, l.Unknown(t.Context(), func(Row, time.Duration) error { return errStale }), errStale)
	})
}

func TestExplainForeseesTheNextBegin(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l, r := h.open(t, late), record(1, 1)
		mustAccept(t, l, r)
		x := mustExplain(t, l, r.Key)
		require.Equal(t, Send, x.Then)
		require.Equal(t, x.Now, x.ThenAt)
		b := mustBegin(t, l, r)
		x = mustExplain(t, l, r.Key)
		require.Equal(t, Send, x.Then)
		require.Equal(t, x.LeaseUntil, x.ThenAt, "not while its worker has it")
		mustSettle(t, l, Result{Key: r.Key, Epoch: b.Epoch, Outcome: PerhapsCharged})
		x = mustExplain(t, l, r.Key)
		require.Equal(t, Send, x.Then)
		require.Equal(t, x.NextAttemptAt, x.ThenAt)
		require.NoError(t, l.Pause(t.Context(), r.Of(), ann))
		require.Equal(t, Send, mustExplain(t, l, r.Key).Then, "when it is resumed")
		h.advance(25 * time.Hour)
		require.Equal(t, Ask, mustExplain(t, l, r.Key).Then, "its key is too old")
		h.skew.Store(0)
		_, err := l.Cancel(t.Context(), r.Of(), ann)
		require.NoError(t, err)
		require.Equal(t, Ask, mustExplain(t, l, r.Key).Then, "cancelled")
		require.NoError(t, h.settle(t, l, r))
		x = mustExplain(t, l, r.Key)
		require.Zero(t, x.Then)
		require.Zero(t, x.ThenAt)
	})
}

// settle ends an ambiguous payout as paid.
func (h *home) settle(t *testing.T, l *Ledger, r Record) error {
	h.advance(time.Minute)
	b := mustBegin(t, l, r)
	_, err := l.Settle(t.Context(), Result{Key: r.Key, Epoch: b.Epoch, Outcome: Paid, TransactionKey: "tx"})
	return err
}
