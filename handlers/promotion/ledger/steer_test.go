package ledger

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// An unknown promotion is steered only with Future and a reason. Each change is in the audit, with
// the user of the database session.
func TestSteering(t *testing.T) {
	t.Parallel()
	p := payouts.Promotion{Type: "POINT", ID: 1}
	verbs := map[string]func(*testing.T, *Ledger, payouts.Promotion, Steering) error{
		"pause": func(t *testing.T, l *Ledger, p payouts.Promotion, by Steering) error {
			return l.Pause(t.Context(), p, by)
		},
		"resume": func(t *testing.T, l *Ledger, p payouts.Promotion, by Steering) error {
			return l.Resume(t.Context(), p, by)
		},
		"cancel": func(t *testing.T, l *Ledger, p payouts.Promotion, by Steering) error {
			_, err := l.Cancel(t.Context(), p, by)
			return err
		},
	}
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		for name, do := range verbs {
			require.ErrorIs(t, do(t, l, p, Steering{Who: "ann", Why: "x"}), ErrNotFound, name)
			require.ErrorIs(t, do(t, l, p, Steering{Who: "ann", Future: true}), rules.ErrInvalid, "%s of a future one without why", name)
			require.ErrorIs(t, do(t, l, p, Steering{Why: "x", Future: true}), rules.ErrInvalid, "%s without who", name)
		}
		require.Empty(t, auditOf(t, l, p))
		_, err := l.Status(t.Context(), p)
		require.ErrorIs(t, err, ErrNotFound, "a refusal leaves nothing behind")
		require.Equal(t, rules.Enqueue, mustAccept(t, l, record(1, 1)).Next)

		_, err = l.Cancel(t.Context(), p, Steering{Who: "ann"})
		require.ErrorIs(t, err, rules.ErrInvalid, "a cancellation without why")
		require.NoError(t, l.Pause(t.Context(), p, Steering{Who: "ann"}))
		require.NoError(t, l.Resume(t.Context(), p, Steering{Who: "bob", Why: "over"}))
		_, err = l.Cancel(t.Context(), p, Steering{Who: "ann", Why: "wrong amounts"})
		require.NoError(t, err)
		require.ErrorIs(t, l.Resume(t.Context(), p, Steering{Who: "bob"}), ErrCancelled)
		require.NoError(t, l.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}, 5))
		require.NoError(t, l.Pause(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}, Steering{Who: "ann"}), "its started event has come")
		require.NoError(t, l.Pause(t.Context(), payouts.Promotion{Type: "POINT", ID: 3}, operator))

		lines := auditOf(t, l, p)
		user := ""
		if portable.DialectOf(h.dsn) == portable.Postgres {
			c, err := pgx.ParseConfig(h.dsn)
			require.NoError(t, err)
			user = c.User
		}
		require.Len(t, lines, 3)
		for i := range lines {
			lines[i].At = lines[0].At
		}
		at := lines[0].At
		require.Equal(t, []Audit{
			{At: at, Who: "ann", Action: "pause", Detail: "RUNNING to PAUSED", DBUser: user},
			{At: at, Who: "bob", Why: "over", Action: "resume", Detail: "PAUSED to RUNNING", DBUser: user},
			{At: at, Who: "ann", Why: "wrong amounts", Action: "cancel", Detail: "RUNNING to CANCELLED", DBUser: user},
		}, lines)
		require.Equal(t, "NEW to PAUSED", auditOf(t, l, payouts.Promotion{Type: "POINT", ID: 3})[0].Detail)

		paused, err := l.Paused(t.Context())
		require.NoError(t, err)
		require.Len(t, paused, 2)
		require.Equal(t, payouts.Promotion{Type: "POINT", ID: 2}, paused[0].Promotion)
		require.GreaterOrEqual(t, paused[0].For.Nanoseconds(), int64(0))
		require.False(t, paused[0].Holds, "it has no payout")
		mustAccept(t, l, record(2, 1))
		paused, err = l.Paused(t.Context())
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, []bool{paused[0].Holds, paused[1].Holds})
	})
}

// A promotion that is paid can't be paused or cancelled by mistake: it stays as it is, without a line in the
// audit, unless more records are announced or the operator expects some.
func TestSteeringOfAFinishedPromotion(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		pay := func(promotion int64) payouts.Promotion {
			rec := record(promotion, 1)
			mustAccept(t, l, rec)
			epoch := mustBegin(t, l, rec).Epoch
			_, err := l.Settle(t.Context(), payouts.CallResult{Key: rec.Key, CallResult: rules.CallResult{Epoch: epoch, Outcome: rules.Done, Receipt: "T"}})
			require.NoError(t, err)
			return rec.OfPromotion()
		}
		by := Steering{Who: "ann", Why: "x"}
		state := func(p payouts.Promotion) rules.GroupState {
			c, err := l.Status(t.Context(), p)
			require.NoError(t, err)
			return c.State
		}
		finished := pay(1)
		require.NoError(t, l.Started(t.Context(), finished, 1))
		for range 2 {
			_, err := l.Cancel(t.Context(), finished, by)
			require.ErrorIs(t, err, ErrFinished)
			require.ErrorIs(t, l.Pause(t.Context(), finished, by), ErrFinished)
			require.ErrorIs(t, l.Pause(t.Context(), finished, Steering{Who: "ann", Try: true}), ErrFinished)
			require.Equal(t, rules.GroupRunning, state(finished))
			require.Empty(t, auditOf(t, l, finished))
		}
		require.NoError(t, l.Pause(t.Context(), finished, Steering{Who: "ann", Why: "x", Future: true}))
		require.NoError(t, l.Resume(t.Context(), finished, by), "it is undone without Future")
		mustAccept(t, l, record(1, 2))
		c, err := l.Cancel(t.Context(), finished, by)
		require.NoError(t, err, "one payout is unsettled")
		require.EqualValues(t, 1, c.Cancelled)
		_, err = l.Cancel(t.Context(), finished, by)
		require.NoError(t, err, "it may be repeated")

		expected := pay(2)
		require.NoError(t, l.Started(t.Context(), expected, 1))
		_, err = l.Cancel(t.Context(), expected, Steering{Who: "ann", Why: "x", Future: true})
		require.NoError(t, err)
		require.Equal(t, rules.GroupCancelled, state(expected))

		unannounced := pay(5)
		_, err = l.Admit(t.Context(), unannounced) // its stream has a row without a number
		require.NoError(t, err)
		_, err = l.Cancel(t.Context(), unannounced, by)
		require.NoError(t, err, "more records may come")
		require.Equal(t, rules.GroupCancelled, state(unannounced))

		failed := record(4, 1)
		mustAccept(t, l, failed)
		endPayout(t, l, failed, false)
		require.NoError(t, l.Started(t.Context(), failed.OfPromotion(), 1))
		_, err = l.Cancel(t.Context(), failed.OfPromotion(), by)
		require.NoError(t, err, "a failed payout is not replayed any more")

		announced := pay(3)
		require.NoError(t, l.Started(t.Context(), announced, 2))
		_, err = l.Cancel(t.Context(), announced, by)
		require.NoError(t, err, "one record is still to come")
		require.Equal(t, rules.GroupCancelled, state(announced))
	})
}

func auditOf(t *testing.T, l *Ledger, p payouts.Promotion) []Audit {
	t.Helper()
	lines, err := l.Audit(t.Context(), p)
	require.NoError(t, err)
	return lines
}
