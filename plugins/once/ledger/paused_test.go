package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// claimBlindly claims in each lane of a kind, as an instance does that has not learned of a pause yet.
func claimBlindly(t *testing.T, l *Ledger, kind string) (all []Claimed) {
	t.Helper()
	for lane := range Lanes {
		claimed, err := l.Claim(t.Context(), kind, lane, 100)
		require.NoError(t, err)
		all = append(all, claimed...)
	}
	return all
}

// Nothing of a paused kind is claimed, by no instance and of no group, whatever it waits for. What runs ends, what comes
// is accepted, and the resume leaves groups as they are.
func TestNothingOfAPausedKindIsClaimed(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b"))
		mail, zeta := record("acme", 1), Group{"invoice", "zeta"}
		mail.Kind = "mail"
		mustAccept(t, a, record("acme", 1), record("acme", 2), record("gone", 3), record("zeta", 4), mail)
		var again Claimed // is tried again, which is another statement than the first begin
		for _, c := range claimBlindly(t, a, "invoice") {
			outcome := rules.TryAgain
			if c.ID == "n2" {
				again, outcome = c, rules.Unclear
			}
			if c.ID != "n1" {
				mustSettle(t, a, end(c, outcome))
			}
		}
		require.NoError(t, a.Pause(t.Context(), zeta, operator))
		h.advance(2 * time.Second)

		require.NoError(t, a.PauseKind(t.Context(), "invoice", By{"ann", "their API is broken"}))
		require.NoError(t, b.PauseKind(t.Context(), "invoice", By{"kim", "me, too"}), "it stays as it is")
		mustAccept(t, b, record("acme", 5), record("new", 6))
		due, err := b.Due(t.Context(), "invoice")
		require.NoError(t, err)
		require.Equal(t, nothingDue, due)
		for _, l := range []*Ledger{a, b} {
			require.Empty(t, claimBlindly(t, l, "invoice"))
		}
		require.Len(t, claimBlindly(t, b, "mail"), 1, "another kind goes on")
		require.Equal(t, rules.Success, mustSettle(t, a, end(Claimed{Key: key("acme", 1), Epoch: 1}, rules.Done))[0].State, "a call that runs ends")
		c, err := b.Cancel(t.Context(), Group{"invoice", "gone"}, operator)
		require.NoError(t, err)
		require.Equal(t, Cancellation{Cancelled: 1}, c, "a group is cancelled at once")
		require.Zero(t, b.countDue(t, "at IS NULL"), "nothing was parked")

		backlog, err := b.Backlog(t.Context(), "invoice")
		require.NoError(t, err)
		p, err := b.KindPaused(t.Context(), "invoice")
		require.NoError(t, err)
		require.Equal(t, []any{"invoice", By{"ann", "their API is broken"}}, []any{p.Kind, p.By})
		require.Equal(t, Backlog{Waiting: 4, Paused: p}, backlog, "nothing may be called for")
		require.Equal(t, p, mustHeld(t, b, again.Key).Paused)
		all, err := b.PausedKinds(t.Context())
		require.NoError(t, err)
		require.Equal(t, []KindPause{*p}, all)

		require.NoError(t, b.ResumeKind(t.Context(), "invoice", operator))
		got := map[string]bool{}
		for _, c := range claimAll(t, a, "invoice") {
			got[c.ID] = true
		}
		require.Equal(t, map[string]bool{"n2": true, "n5": true, "n6": true}, got, "but nothing of the group that is paused")
		require.Equal(t, rules.GroupPaused, mustStatus(t, a, zeta).State)
		require.NoError(t, a.Resume(t.Context(), zeta, operator))
		require.NoError(t, a.Sweep(t.Context()))
		require.Len(t, claimAll(t, b, "invoice"), 1)

		s, err := a.LimitsOf(t.Context(), "invoice")
		require.NoError(t, err)
		var said []string
		for _, x := range s.Audit {
			said = append(said, x.Action+" by "+x.Who+": "+x.Detail)
		}
		require.Equal(t, []string{"pause by ann: the kind: RUNNING to PAUSED", "pause by kim: the kind: PAUSED to PAUSED", "resume by ann: the kind: PAUSED to RUNNING"}, said)
		require.ErrorIs(t, a.PauseKind(t.Context(), "nothing", operator), ErrNotFound)
		require.ErrorIs(t, a.ResumeKind(t.Context(), "invoice", By{Who: "ann"}), ErrInvalid, "it needs a reason")
	})
}

// An effect of a caller's transaction is accepted without a look at a pause, and is not claimed.
func TestAnEffectOfATransactionWaitsForItsKind(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		require.NoError(t, l.PauseKind(t.Context(), "invoice", operator))
		tx := h.begin(t)
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(tx), records("acme", 2)))
		require.NoError(t, tx.Commit(t.Context()))
		require.Empty(t, claimBlindly(t, l, "invoice"))
		require.Equal(t, rules.Pending, mustExplain(t, l, key("acme", 1)).Row.State)
		require.NoError(t, l.ResumeKind(t.Context(), "invoice", operator))
		require.Len(t, claimAll(t, l, "invoice"), 2)
	})
}

// A claim shares the lock that the pause of its kind takes alone, as that of a group, so no call is leased by a
// transaction that commits after the pause has returned.
func TestAClaimAndThePauseOfItsKindExcludeEachOther(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 4)...)
		lock, lane := pauseLock(l.kinds["invoice"].number), int(laneOf("acme"))
		first, err := l.Claim(t.Context(), "invoice", lane, 1)
		require.NoError(t, err)
		mustSettle(t, l, end(first[0], rules.TryAgain))
		h.advance(time.Minute)

		pause := h.begin(t)
		_, err = pause.Exec(t.Context(), pgGroupLock, lock.kind, lock.name)
		require.NoError(t, err)
		claimed, err := l.Claim(t.Context(), "invoice", lane, 1)
		require.NoError(t, err)
		require.Empty(t, claimed)
		require.NoError(t, pause.Rollback(t.Context()))

		claim := h.begin(t)
		_, err = claim.Exec(t.Context(), pgShareGroupLocks, []int64{lock.kind}, []string{lock.name})
		require.NoError(t, err)
		claimed, err = l.Claim(t.Context(), "invoice", lane, 1)
		require.NoError(t, err, "claims share the lock")
		require.Len(t, claimed, 1)
		paused := make(chan error, 1)
		go func() { paused <- l.PauseKind(t.Context(), "invoice", operator) }()
		h.awaitLock(t, claim, lock)
		select {
		case err := <-paused:
			require.Fail(t, "the pause has returned before the claim ended", "%v", err)
		default:
		}
		require.NoError(t, claim.Commit(t.Context()))
		require.NoError(t, <-paused)
		require.Empty(t, claimBlindly(t, l, "invoice"))
	})
}
