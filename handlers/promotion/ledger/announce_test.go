package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A begin creates no payout and no promotion. One dead letter has the offered request, however
// often it is repeated.
func TestABeginAnnouncesNothing(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		known, foreign := record(1, 1), record(1, 2)
		mustAccept(t, l, known)
		for range 2 {
			require.Equal(t, BeginResult{Next: rules.Unannounced, Why: "unannounced"}, mustBegin(t, l, foreign))
			require.Equal(t, rules.Unannounced, mustBegin(t, l, record(2, 1)).Next)
		}
		require.Equal(t, rules.Send, mustBegin(t, l, known).Next)
		other := foreign
		other.Payload = []byte(`{"amount":9}`)
		require.Equal(t, rules.Unannounced, mustBegin(t, l, other).Next)

		_, err := l.Explain(t.Context(), foreign.Key)
		require.ErrorIs(t, err, ErrNotFound)
		_, err = l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 2})
		require.ErrorIs(t, err, ErrNotFound, "nor the promotion")
		dead := relayed(t, l, OutboxDead)
		require.Len(t, dead, 3, "one for each payout and request")
		for _, d := range dead {
			require.Equal(t, rules.ClassUnannounced, d.Class)
		}
		c, err := l.Status(t.Context(), known.OfPromotion())
		require.NoError(t, err)
		require.EqualValues(t, 1, c.Accepted)
	})
}

// The replay of a dead letter of class unannounced announces the payout once, with a row in the
// audit.
func TestAReplayAnnounces(t *testing.T) {
	t.Parallel()
	again := func(generation int) Replay {
		return Replay{DeadLetter: "l1", Generation: generation, Who: "ann", Why: "seen"}
	}
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		r := record(1, 2)
		require.Equal(t, rules.Unannounced, mustBegin(t, l, r).Next)
		_, err := l.Announce(t.Context(), r, Replay{DeadLetter: "l1", Generation: 1})
		require.ErrorIs(t, err, rules.ErrInvalid, "who and why")
		done, err := l.Announce(t.Context(), r, Replay{DeadLetter: "l1", Generation: 1, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, ReplayResult{Outcome: ReplayDone, State: rules.Pending}, done)
		require.Equal(t, rules.Unannounced, mustBegin(t, l, r).Next, "a dry run announces nothing")

		for i, want := range []ReplayOutcome{ReplayDone, ReplayAlready} {
			done, err = l.Announce(t.Context(), r, again(1+i))
			require.NoError(t, err)
			require.Equal(t, ReplayResult{Outcome: want, State: rules.Pending}, done)
		}
		rows, err := l.FeedUnqueued(t.Context(), r.OfPromotion(), 10)
		require.NoError(t, err)
		require.Len(t, rows, 1, "the feeder enqueues it")
		require.Equal(t, rules.Send, mustBegin(t, l, r).Next)
		x := mustExplain(t, l, r.Key)
		require.True(t, x.AnnouncedByReplay())
		require.Len(t, x.Audit, 1)
		require.Equal(t, []string{"ann", "seen", "announce"}, []string{x.Audit[0].Who, x.Audit[0].Why, x.Audit[0].Action})

		other := r
		other.Payload = []byte(`{"amount":9}`)
		done, err = l.Announce(t.Context(), other, again(1))
		require.NoError(t, err)
		require.Equal(t, ReplayResult{Outcome: ReplayRefused, Reason: "another request for it came first", State: rules.Sending}, done)
	})
}

// Two replays and a record at the same time create one payout.
func TestManyAnnounceOnePayout(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t), h.open(t, as("b"))}
		for target := range int64(10) {
			r := record(1, target+1)
			results := make(chan error, 4)
			for i := range 4 {
				go func() {
					if i == 3 {
						_, err := ledgers[0].acceptOne(t.Context(), r, false)
						results <- err
						return
					}
					_, err := ledgers[i%2].Announce(t.Context(), r, Replay{DeadLetter: r.Key.String(), Generation: 1, Who: "ann", Why: "x"})
					results <- err
				}()
			}
			for range 4 {
				require.NoError(t, <-results)
			}
		}
		c, err := ledgers[0].Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		require.EqualValues(t, 10, c.Accepted)
	})
}

// The sweep only activates streams of promotions that are in the ledger.
func TestOnlyAKnownPromotionIsActivated(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, record(1, 1))
		require.NoError(t, l.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}, 5))
		require.NoError(t, l.Deactivate(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}))
		for id, want := range map[int64]bool{1: true, 2: true, 3: false} {
			known, err := l.ActivateKnown(t.Context(), payouts.Promotion{Type: "POINT", ID: id})
			require.NoError(t, err)
			require.Equal(t, want, known, id)
		}
		active, err := l.Active(t.Context(), "POINT")
		require.NoError(t, err)
		require.Len(t, active, 2)
		_, err = l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 3})
		require.ErrorIs(t, err, ErrNotFound)
	})
}
