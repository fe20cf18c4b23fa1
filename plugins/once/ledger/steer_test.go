package ledger

import (
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// countDue counts the rows of once_due that meet a condition.
func (l *Ledger) countDue(t *testing.T, condition string) (n int) {
	require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
		return q.query(t.Context(), func(r scanner) error { return r.Scan(&n) }, `SELECT count(*) FROM once_due_effects WHERE `+condition)
	}))
	return n
}

func TestAPausedGroupIsMetOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 1100)...)
		require.NoError(t, l.Pause(t.Context(), acme, operator))
		require.Equal(t, rules.GroupPaused, mustStatus(t, l, acme).State)
		for range 2 { // 1,000 a time
			require.Empty(t, claimAll(t, l, "invoice"))
		}
		require.Equal(t, 1100, l.countDue(t, "at IS NULL"))
		require.NoError(t, l.Sweep(t.Context()), "leaves a paused group alone")
		due, err := l.Due(t.Context(), "invoice")
		require.NoError(t, err)
		require.Equal(t, nothingDue, due)

		require.NoError(t, l.Resume(t.Context(), acme, operator))
		require.NoError(t, l.Sweep(t.Context()), "more than two chunks")
		require.Zero(t, l.countDue(t, "at IS NULL"))
		require.Len(t, claimAll(t, l, "invoice"), 1000)
		require.Len(t, claimAll(t, l, "invoice"), 100)
	})
}

// What a pause lets end is counted, of a group or of its kind, and the leases say when it has ended at the latest.
func TestCallsUnderWay(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, append(records("acme", 3), record("zeta", 9))...)
		underWay := func(g Group, want int64, last ...Key) {
			t.Helper()
			before := l.clock(t)
			calls, atMost, err := l.UnderWay(t.Context(), g)
			require.NoError(t, err)
			require.Equal(t, want, calls)
			var ends time.Time
			for _, k := range last {
				ends = mustExplain(t, l, k).Row.LeaseUntil
			}
			require.LessOrEqual(t, atMost, max(0, ends.Sub(before)))
			require.GreaterOrEqual(t, atMost, max(0, ends.Sub(l.clock(t))))
		}
		kind := Group{Kind: "invoice"}
		underWay(acme, 0)
		underWay(kind, 0)
		require.Len(t, claimAll(t, l, "invoice"), 4)
		underWay(acme, 3, key("acme", 0))
		h.advance(time.Second)
		mustAccept(t, l, record("zeta", 10))
		require.Len(t, claimAll(t, l, "invoice"), 1)
		require.NoError(t, l.Pause(t.Context(), acme, operator))
		mustSettle(t, l, end(Claimed{Key: key("acme", 1), Epoch: 1}, rules.Done))
		underWay(acme, 2, key("acme", 0))
		underWay(kind, 4, key("zeta", 10))
		underWay(Group{"invoice", "nobody"}, 0)
		h.advance(time.Minute)
		underWay(acme, 0)
		underWay(kind, 0)
		_, _, err := l.UnderWay(t.Context(), Group{"nothing", "acme"})
		require.ErrorIs(t, err, ErrNotFound)
	})
}

// A worker was killed in a call, and nobody may claim its effect. It is not being called.
func TestAnEndedLeaseIsNoCall(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]func(t *testing.T, l *Ledger) error{
		"its group is paused": func(t *testing.T, l *Ledger) error { return l.Pause(t.Context(), acme, operator) },
		"its kind is paused":  func(t *testing.T, l *Ledger) error { return l.PauseKind(t.Context(), "invoice", operator) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachDatabase(t, func(t *testing.T, h *testDB) {
				l := h.open(t)
				mustAccept(t, l, records("acme", 1)...)
				require.Len(t, claimAll(t, l, "invoice"), 1)
				calling := func() (all []bool) {
					waiting, _, err := l.Waiting(t.Context(), acme, 10)
					require.NoError(t, err)
					b, err := l.Backlog(t.Context(), "invoice")
					require.NoError(t, err)
					held, err := l.Held(t.Context(), waiting[0].Key)
					require.NoError(t, err)
					s := mustStatus(t, l, acme)
					require.EqualValues(t, 1, s.Calling+s.Waiting)
					require.EqualValues(t, 1, b.Calling+b.Waiting)
					return []bool{waiting[0].Calling, b.Calling == 1, held.Calling == 1, s.Calling == 1}
				}
				require.Equal(t, []bool{true, true, true, true}, calling())
				require.NoError(t, pause(t, l))
				require.Equal(t, []bool{true, true, true, true}, calling(), "it ends normally")
				h.advance(time.Minute)
				require.Empty(t, claimAll(t, l, "invoice"))
				require.Equal(t, []bool{false, false, false, false}, calling())
			})
		})
	}
}

// A group is paused or cancelled before its first effect, which needs a reason. Nothing of it is called for then.
func TestAGroupOfTheFutureIsSteered(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l, ctx := h.open(t), t.Context()
		zeta := Group{"invoice", "zeta"}
		require.ErrorIs(t, l.Pause(ctx, acme, operator), ErrNotFound)
		require.ErrorIs(t, l.Pause(ctx, acme, By{Who: "ann"}, Future), ErrInvalid, "it needs a reason")
		require.ErrorIs(t, l.Pause(ctx, Group{"nothing", "acme"}, operator, Future), ErrNotFound)
		_, err := l.Status(ctx, acme)
		require.ErrorIs(t, err, ErrNotFound)

		require.NoError(t, l.Pause(ctx, acme, operator, Future))
		require.Equal(t, rules.GroupPaused, mustStatus(t, l, acme).State)
		audit, err := l.GroupAudit(ctx, acme)
		require.NoError(t, err)
		require.Equal(t, "RUNNING to PAUSED, also for effects to come", audit[0].Detail)
		mustAccept(t, l, records("acme", 2)...)
		require.Empty(t, claimAll(t, l, "invoice"))
		require.NoError(t, l.Resume(ctx, acme, operator))
		require.NoError(t, l.Sweep(ctx))
		require.Len(t, claimAll(t, l, "invoice"), 2)

		c, err := l.Cancel(ctx, zeta, operator, Future)
		require.NoError(t, err)
		require.Equal(t, Cancellation{}, c)
		require.Equal(t, []Accepted{Cancelled}, mustAccept(t, l, record("zeta", 1)))
		require.ErrorIs(t, l.Pause(ctx, zeta, operator, Future), ErrCancelled)
	})
}

// An effect of a caller's transaction, which reads no state, is not called for either.
func TestACancelledGroupOfTheFutureEndsWhatATransactionAccepts(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		_, err := l.Cancel(t.Context(), acme, operator, Future)
		require.NoError(t, err)
		tx := h.begin(t)
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(tx), records("acme", 2)))
		require.NoError(t, tx.Commit(t.Context()))
		require.Empty(t, claimAll(t, l, "invoice"))
		require.Equal(t, Totals{Accepted: 2, Cancelled: 2}, mustStatus(t, l, acme).Totals)
	})
}

// A group of which all that were expected are done or cancelled has nothing to pause or to cancel. What failed can be replayed.
func TestAFinishedGroupIsNotSteered(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l, ctx := h.open(t), t.Context()
		cancel := func(how ...Steer) error { _, err := l.Cancel(ctx, acme, operator, how...); return err }
		require.NoError(t, l.Expect(ctx, acme, 2))
		mustAccept(t, l, records("acme", 2)...)
		for _, c := range claimAll(t, l, "invoice") {
			mustSettle(t, l, end(c, rules.Done))
		}
		require.ErrorIs(t, l.Pause(ctx, acme, operator), ErrFinished)
		require.ErrorIs(t, cancel(), ErrFinished)
		require.NoError(t, l.Sweep(ctx), "the counts are in the totals")
		require.ErrorIs(t, l.Pause(ctx, acme, operator), ErrFinished)
		audit, err := l.GroupAudit(ctx, acme)
		require.NoError(t, err)
		require.Empty(t, audit)
		require.NoError(t, l.Resume(ctx, acme, operator))

		require.NoError(t, l.Pause(ctx, acme, operator, Future))
		require.NoError(t, l.Pause(ctx, acme, operator), "it is paused already")
		require.ErrorIs(t, cancel(), ErrFinished)
		require.NoError(t, l.Resume(ctx, acme, operator))

		mustAccept(t, l, record("acme", 2))
		require.NoError(t, l.Pause(ctx, acme, operator), "one waits")
		require.NoError(t, l.Resume(ctx, acme, operator))
		mustSettle(t, l, end(claimAll(t, l, "invoice")[0], rules.Rejected))
		require.True(t, mustStatus(t, l, acme).Finished())
		require.NoError(t, l.Pause(ctx, acme, operator), "it can be replayed")
		require.NoError(t, l.Resume(ctx, acme, operator))
		require.NoError(t, l.Replay(ctx, key("acme", 2), operator))
		mustSettle(t, l, end(claimAll(t, l, "invoice")[0], rules.Done))
		require.ErrorIs(t, cancel(), ErrFinished)
		require.NoError(t, cancel(Future))
		require.NoError(t, cancel(), "it is cancelled already")
	})
}

// The mark of a group stays while anything is parked, also when a sweep ended in the middle.
func TestAnInterruptedSweepGoesOn(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 600)...)
		require.NoError(t, l.Pause(t.Context(), acme, operator))
		require.Empty(t, claimAll(t, l, "invoice"))
		require.NoError(t, l.Resume(t.Context(), acme, operator))
		id := groupID{l.kinds["invoice"].number, "acme"}
		require.NoError(t, l.store.update(t.Context(), groupLock{shared: &id}, func(q querier, now time.Time) error { // one chunk, and the process is gone
			_, err := q.exec(t.Context(), unparkSQL(l.store, q), id.kind, id.name, now, 5)
			return err
		}))
		left := l.countDue(t, "at IS NULL")
		require.True(t, left > 0 && left < 600, left)
		require.NoError(t, l.Sweep(t.Context()))
		require.Zero(t, l.countDue(t, "at IS NULL"))
		require.Len(t, claimAll(t, l, "invoice"), 600)
	})
}

func TestACancellationSettlesWhatCertainlyDidNotHappen(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		_, err := l.Cancel(t.Context(), acme, operator)
		require.ErrorIs(t, err, ErrNotFound)
		_, err = l.Cancel(t.Context(), Group{"nothing", "acme"}, operator)
		require.ErrorIs(t, err, ErrNotFound)

		mustAccept(t, l, records("acme", 1200)...)
		lane := int(laneOf("acme"))
		claimed, err := l.Claim(t.Context(), "invoice", lane, 3)
		require.NoError(t, err)
		require.Len(t, claimed, 3)
		mustSettle(t, l, end(claimed[0], rules.Unclear), end(claimed[1], rules.TryAgain))
		_, err = l.Cancel(t.Context(), acme, By{Who: "ann"})
		require.ErrorIs(t, err, ErrInvalid, "it needs a reason")
		c, err := l.Cancel(t.Context(), acme, operator)
		require.NoError(t, err)
		require.Equal(t, Cancellation{Cancelled: 1198, Calling: 1, Ambiguous: 1}, c)
		require.ErrorIs(t, l.Pause(t.Context(), acme, operator), ErrCancelled)
		require.ErrorIs(t, l.Resume(t.Context(), acme, operator), ErrCancelled)

		h.advance(time.Minute)
		c, err = l.Cancel(t.Context(), acme, operator)
		require.NoError(t, err)
		require.Equal(t, Cancellation{Ambiguous: 2}, c, "a lease that has ended is no call")
		mustSettle(t, l, end(claimed[2], rules.Done))
		again := claimAll(t, l, "invoice")
		require.Len(t, again, 1)
		require.True(t, again[0].Lookup, "nothing is sent any more")
		require.Equal(t, []Accepted{Cancelled, Cancelled}, mustAccept(t, l, record("acme", 5), record("acme", 9999)))
		require.Equal(t, Totals{Accepted: 1201, Done: 1, Cancelled: 1199}, mustStatus(t, l, acme).Totals)
		audit := mustExplain(t, l, key("acme", 1)).Audit
		require.Empty(t, audit)
	})
}

func TestOperatorsReplayAndResolve(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mail := record("acme", 1)
		mail.Kind = "mail"
		mustAccept(t, l, mail, record("acme", 1))
		claimed := append(claimAll(t, l, "mail"), claimAll(t, l, "invoice")...)
		require.Len(t, claimed, 2)
		mustSettle(t, l, end(claimed[0], rules.Unclear), end(claimed[1], rules.Rejected))
		problems, more, err := l.Problems(t.Context(), "", "", "", 10)
		require.NoError(t, err)
		require.False(t, more)
		require.Len(t, problems, 2)
		_, more, err = l.Problems(t.Context(), "", "", "", 1)
		require.NoError(t, err)
		require.True(t, more)
		problems, _, err = l.Problems(t.Context(), "mail", "acme", rules.Unknown, 10)
		require.NoError(t, err)
		require.Len(t, problems, 1)
		require.Equal(t, []any{mail.Key, rules.Unknown, "unknown", "said unclear"}, []any{problems[0].Key, problems[0].State, problems[0].Class, problems[0].Error})

		var refused *RefusedError
		require.ErrorAs(t, l.Replay(t.Context(), mail.Key, operator), &refused)
		require.Equal(t, rules.RefusedNoCall, refused.Refusal)
		require.ErrorIs(t, l.Replay(t.Context(), key("acme", 1), By{Who: "ann"}), ErrInvalid)
		require.ErrorIs(t, l.Replay(t.Context(), key("acme", 9), operator), ErrNotFound)
		require.NoError(t, l.Replay(t.Context(), key("acme", 1), operator))
		b, err := l.Backlog(t.Context(), "invoice")
		require.NoError(t, err)
		require.Equal(t, []int64{1, 1, 0, 0, 0}, []int64{b.Due, b.Waiting, b.Calling, b.Failed, b.Unknown})
		again := claimAll(t, l, "invoice")
		require.Len(t, again, 1)
		require.Equal(t, int64(3), again[0].Epoch, "a late answer of the first call is stale")
		for range 2 {
			s := mustSettle(t, l, end(claimed[1], rules.Done))
			require.True(t, s[0].Stale, "it is kept and changes nothing")
			require.Equal(t, rules.Sending, s[0].State)
		}
		x := mustExplain(t, l, key("acme", 1))
		require.Len(t, x.Calls, 3, "the refusal, the late answer and the open call")
		require.Equal(t, "r-n1", x.Calls[1].Receipt)
		require.Equal(t, "replay", x.Audit[0].Action)
		mustSettle(t, l, end(again[0], rules.Rejected))
		require.Equal(t, rules.Failed, mustExplain(t, l, key("acme", 1)).Row.State)

		require.NoError(t, l.Resolve(t.Context(), mail.Key, rules.Resolution{Done: true, Receipt: "found", Who: "kim", Why: "their list"}))
		require.Equal(t, "found", mustExplain(t, l, mail.Key).Row.Receipt)
		problems, _, err = l.Problems(t.Context(), "mail", "", "", 10)
		require.NoError(t, err)
		require.Empty(t, problems)
		require.NoError(t, l.Sweep(t.Context()))
		b, err = l.Backlog(t.Context(), "mail")
		require.NoError(t, err)
		require.Equal(t, Backlog{}, b)
		groups, more, err := l.Groups(t.Context(), "", Group{}, 1)
		require.NoError(t, err)
		require.True(t, more)
		require.Equal(t, acme, groups[0].Group)
		groups, more, err = l.Groups(t.Context(), "mail", Group{}, 1)
		require.NoError(t, err)
		require.False(t, more)
		require.Equal(t, int64(1), groups[0].Done)

		all, _, err := l.Groups(t.Context(), "", Group{}, 10)
		require.NoError(t, err)
		require.Greater(t, len(all), 1)
		for i, g := range all {
			groups, more, err = l.Groups(t.Context(), "", g.Group, 1)
			require.NoError(t, err)
			require.ElementsMatch(t, all[i+1:min(i+2, len(all))], groups, "the one after %v", g.Group)
			require.Equal(t, i+2 < len(all), more)
		}
		for i, g := range all[1:] {
			require.False(t, g.CreatedAt.After(all[i].CreatedAt), "the newest are first")
		}
		_, _, err = l.Groups(t.Context(), "", Group{Kind: "mail", Name: "absent"}, 10)
		require.ErrorIs(t, err, ErrNotFound)
		groups, _, err = l.Groups(t.Context(), "mail", Group{Kind: "mail", Name: "acme"}, 10)
		require.NoError(t, err)
		require.Empty(t, groups)
		_, _, err = l.Groups(t.Context(), "", Group{Kind: "absent", Name: "x"}, 10)
		require.ErrorIs(t, err, ErrNotFound)
	})
}

// A commit whose answer is lost has taken leases, and the claim finds them.
func TestALostAnswerOfAClaimLosesNoLease(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 3)...)
		l.store = &deaf{store: l.store, times: 1}
		claimed, err := l.Claim(t.Context(), "invoice", int(laneOf("acme")), 10)
		require.NoError(t, err)
		require.Len(t, claimed, 3)
	})
}

// deaf loses the answers of commits.
type deaf struct {
	store
	times int
}

type deafTransaction struct {
	transaction
	s *deaf
}

func (s *deaf) begin(ctx ctxt, w readRequest) (transaction, *readResult, error) {
	tx, read, err := s.store.begin(ctx, w)
	return &deafTransaction{tx, s}, read, err
}

func (tx *deafTransaction) commit(ctx ctxt, w *writeSet) error {
	if err := tx.transaction.commit(ctx, w); err != nil || tx.s.times == 0 {
		return err
	}
	tx.s.times--
	return io.ErrUnexpectedEOF
}

// A claim decides about a group whose state can't change until its commit, because it shares the lock that a
// pause takes alone. So no call is leased by a transaction that read the state before the pause and commits
// after it.
func TestAClaimAndAPauseExcludeEachOther(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 3)...)
		number := l.kinds["invoice"].number

		pause := h.begin(t)
		_, err := pause.Exec(t.Context(), pgGroupLock, number, "acme")
		require.NoError(t, err)
		claimed, err := l.Claim(t.Context(), "invoice", int(laneOf("acme")), 1)
		require.NoError(t, err)
		require.Empty(t, claimed)
		require.NoError(t, pause.Rollback(t.Context()))

		claim := h.begin(t)
		_, err = claim.Exec(t.Context(), pgShareGroupLocks, []int64{number}, []string{"acme"})
		require.NoError(t, err)
		claimed, err = l.Claim(t.Context(), "invoice", int(laneOf("acme")), 1)
		require.NoError(t, err, "claims share the lock")
		require.Len(t, claimed, 1)
		paused := make(chan error, 1)
		go func() { paused <- l.Pause(t.Context(), acme, operator) }()
		h.awaitLock(t, claim, groupID{number, "acme"})
		select {
		case err := <-paused:
			require.Fail(t, "the pause has returned before the claim ended", "%v", err)
		default:
		}
		require.NoError(t, claim.Commit(t.Context()))
		require.NoError(t, <-paused)
	})
}

// awaitLock returns when a pause waits for a lock that the transaction has.
func (*testDB) awaitLock(t *testing.T, claim pgx.Tx, lock groupID) {
	t.Helper()
	waits := "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = " + pgGroupLockClass + ` AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND objid::bigint = hashtext(current_schema() || '/' || $1::bigint || '/' || $2::text)::bigint & 4294967295`
	require.Eventually(t, func() bool {
		var n int
		return claim.QueryRow(t.Context(), waits, lock.kind, lock.name).Scan(&n) == nil && n > 0
	}, time.Minute, 5*time.Millisecond, "the pause waits for the claim")
}
