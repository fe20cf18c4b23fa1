package ledger

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// dueRows returns the number of ids in each row of once_due that meets a condition, the largest first.
func (l *Ledger) dueRows(t *testing.T, condition string) (sizes []int) {
	rows, err := l.store.(*postgres).cold.Query(t.Context(), `SELECT cardinality(string_to_array(ids, chr(10))) AS n FROM once_due WHERE `+condition+` ORDER BY n DESC`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var n int
		require.NoError(t, rows.Scan(&n))
		sizes = append(sizes, n)
	}
	require.NoError(t, rows.Err())
	return sizes
}

// A claim leaves what it does not take in its row. The row of its calls is deleted with the last answer, however many
// transactions store the answers.
func TestEffectsThatAreDueTogetherShareARow(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 120)...)
		require.Equal(t, []int{dueIDs, dueIDs, 20}, l.dueRows(t, "NOT calling"))
		lane := int(laneOf("acme"))
		claimed, err := l.Claim(t.Context(), "invoice", lane, 8)
		require.NoError(t, err)
		require.Len(t, claimed, 8)
		require.Contains(t, [][]int{{dueIDs, dueIDs - 8, 20}, {dueIDs, dueIDs, 12}}, l.dueRows(t, "NOT calling"), "one row was shortened")
		require.Equal(t, []int{8}, l.dueRows(t, "calling"))
		require.Equal(t, 112, l.countDue(t, "NOT calling"))

		mustSettle(t, l, end(claimed[0], rules.Done), end(claimed[1], rules.Done), end(claimed[2], rules.TryAgain))
		require.Equal(t, []int{8}, l.dueRows(t, "calling"), "five are called")
		require.Equal(t, 5, l.countDue(t, "calling"))
		b, err := l.Backlog(t.Context(), "invoice")
		require.NoError(t, err)
		require.EqualValues(t, 5, b.Calling)
		require.EqualValues(t, 113, b.Waiting)
		require.EqualValues(t, 5, mustStatus(t, l, acme).Calling)
		require.EqualValues(t, 5, mustHeld(t, l, key("acme", 0)).Calling)
		for range 2 {
			mustSettle(t, l, end(claimed[3], rules.Done), end(claimed[4], rules.Unclear)) // the second time is a repetition
		}
		require.Equal(t, []int{8}, l.dueRows(t, "calling"))
		mustSettle(t, l, end(claimed[5], rules.Done), end(claimed[6], rules.Done), end(claimed[7], rules.Done))
		require.Empty(t, l.dueRows(t, "calling"))
		require.Equal(t, 114, l.countDue(t, "NOT calling"))
	})
}

// A row of calls whose answers other processes have stored is deleted after its leases, and one with a call never.
func TestASweepForgetsRowsWithoutACall(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b"))
		mustAccept(t, a, records("acme", 3)...)
		mustAccept(t, a, records("zeta", 2)...)
		var answers []End
		for _, c := range claimAll(t, a, "invoice") {
			if c.Key != key("zeta", 1) {
				answers = append(answers, end(c, rules.Done))
			}
		}
		mustSettle(t, b, answers...)
		require.NoError(t, a.Sweep(t.Context()))
		require.Equal(t, []int{3, 2}, a.dueRows(t, "calling"), "the leases last")
		h.advance(time.Minute)
		require.NoError(t, b.Sweep(t.Context()))
		require.Equal(t, []int{2}, a.dueRows(t, "calling"), "one has a call")
		again := claimAll(t, b, "invoice")
		require.Len(t, again, 1)
		require.Equal(t, key("zeta", 1), again[0].Key)
		require.Equal(t, []int{1}, a.dueRows(t, "calling"))
	})
}

// An answer that was committed and is lost by a failover leaves its call in its row, where the next claim finds it.
func TestALostAnswerStrandsNoEffect(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 2)...)
		claimed := claimAll(t, l, "invoice")
		s := l.store.(*postgres)
		_, err := s.cold.Exec(t.Context(), `CREATE TABLE backup AS SELECT * FROM once_effects`)
		require.NoError(t, err)
		mustSettle(t, l, end(claimed[0], rules.Done))
		_, err = s.cold.Exec(t.Context(), `UPDATE once_effects AS e SET state = b.state, settled_at = NULL, lease_until = b.lease_until, due = b.due FROM backup AS b WHERE b.id = e.id AND e.id = 'n0'`)
		require.NoError(t, err)
		mustSettle(t, l, end(claimed[1], rules.Done))
		require.Equal(t, 1, l.countDue(t, "calling"))
		h.advance(time.Minute)
		require.Len(t, claimAll(t, l, "invoice"), 1)
	})
}

// A claim finds the expired leases of a killed process also among those that were answered, and takes no more than
// it may.
func TestAClaimTakesAPartOfExpiredLeases(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		killed, l := h.open(t), h.open(t, as("b"))
		mustAccept(t, killed, records("acme", 10)...)
		claimed := claimAll(t, killed, "invoice")
		mustSettle(t, l, end(claimed[0], rules.Done), end(claimed[4], rules.Rejected), end(claimed[9], rules.Done))
		h.advance(time.Minute)
		met := map[Key]bool{}
		for n := range 3 {
			again, err := l.Claim(t.Context(), "invoice", int(laneOf("acme")), 3)
			require.NoError(t, err)
			require.Len(t, again, []int{3, 3, 1}[n])
			for _, c := range again {
				require.EqualValues(t, 2, c.Epoch)
				met[c.Key] = true
			}
		}
		require.Len(t, met, 7)
		require.Zero(t, l.countDue(t, "NOT calling"))
		require.Equal(t, 7, l.countDue(t, "calling"))
	})
}

// What a cancellation or an operator settles while it waits leaves its row, and others stay in it.
func TestASettledEffectLeavesTheRowThatItWaitsIn(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 3)...)
		for _, c := range claimAll(t, l, "invoice") {
			o := rules.Unclear
			if c.ID == "n1" {
				o = rules.TryAgain
			}
			mustSettle(t, l, end(c, o))
			if c.ID == "n2" { // a failure later: its lookups are used up
				require.Equal(t, rules.Ambiguous, mustExplain(t, l, c.Key).Row.State)
			}
		}
		h.advance(2 * time.Hour) // the keys are old
		for _, c := range claimAll(t, l, "invoice") {
			mustSettle(t, l, end(c, rules.Unrecognized))
		}
		// Two rows with one time would be one, so the ids are put together here.
		s := l.store.(*postgres)
		_, err := s.cold.Exec(t.Context(), `DELETE FROM once_due`)
		require.NoError(t, err)
		_, err = s.cold.Exec(t.Context(), `INSERT INTO once_due (number, kind, lane, calling, at, grp, ids) SELECT 7, kind, lane, FALSE, now(), grp, string_agg(id, chr(10)) FROM once_effects GROUP BY kind, lane, grp`)
		require.NoError(t, err)
		_, err = s.cold.Exec(t.Context(), `UPDATE once_effects SET due = 7`)
		require.NoError(t, err)
		require.NoError(t, l.Resolve(t.Context(), key("acme", 2), rules.Resolution{Done: true, Receipt: "found", Who: "kim", Why: "their list", Force: true}))
		require.Equal(t, []int{2}, l.dueRows(t, "TRUE"))
		require.Equal(t, 2, l.countDue(t, "TRUE"))
		c, err := l.Cancel(t.Context(), acme, operator)
		require.NoError(t, err)
		require.Equal(t, Cancellation{Cancelled: 1, Ambiguous: 1}, c)
		require.Equal(t, []int{1}, l.dueRows(t, "TRUE"))
		require.NoError(t, l.Resolve(t.Context(), key("acme", 0), rules.Resolution{Done: true, Receipt: "found", Who: "kim", Why: "their list", Force: true}))
		require.Empty(t, l.dueRows(t, "TRUE"))
	})
}

// An id of 100 bytes and effects with a time of their own make other rows, and no row is large enough to be compressed.
func TestARowOfDueEffectsIsBounded(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		var all []Record
		for n := range 60 {
			r := record("acme", n)
			r.ID = fmt.Sprintf("%s%02d", strings.Repeat("x", maxKeyBytes-2), n)
			if n%20 == 0 {
				r.NotBefore = l.clock(t).Add(time.Duration(n+1) * time.Hour)
			}
			all = append(all, r)
		}
		mustAccept(t, l, all...)
		var largest int
		require.NoError(t, l.store.(*postgres).cold.QueryRow(t.Context(), `SELECT max(length(ids)) FROM once_due`).Scan(&largest))
		require.LessOrEqual(t, largest, dueBytes+len(idSeparator))
		require.Equal(t, []int{1, 1, 1}, l.dueRows(t, "at > now()"))
		require.Len(t, claimAll(t, l, "invoice"), 57)
		require.Equal(t, []int{57}, l.dueRows(t, "calling"))
	})
}

// The fence is the row of an effect: an answer waits for whoever has it and then compares the epoch, and a claim leaves it.
func TestTheRowOfAnEffectIsTheFence(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 2)...)
		claimed := claimAll(t, l, "invoice")
		other := h.begin(t)
		var pid int
		require.NoError(t, other.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
		_, err := other.Exec(t.Context(), `UPDATE once_effects SET epoch = 2 WHERE id = 'n0'`)
		require.NoError(t, err)
		settled := make(chan []SettledResult, 1)
		go func() {
			results, _ := l.Settle(context.WithoutCancel(t.Context()), []End{end(claimed[0], rules.Done)})
			settled <- results
		}()
		require.Eventually(t, func() bool {
			var n int
			return other.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))`, pid).Scan(&n) == nil && n > 0
		}, 2*time.Minute, time.Millisecond, "the answer waits")
		require.NoError(t, other.Commit(t.Context()))
		results := <-settled
		if results[0].Err == nil { // on a busy machine the wait may have been too long for it
			require.True(t, results[0].Stale)
		}
		require.Equal(t, rules.Sending, mustExplain(t, l, key("acme", 0)).Row.State)

		h.advance(time.Minute)
		other = h.begin(t)
		_, err = other.Exec(t.Context(), `SELECT 1 FROM once_effects WHERE id = 'n0' FOR UPDATE`)
		require.NoError(t, err)
		again := claimAll(t, l, "invoice")
		require.Len(t, again, 1)
		require.Equal(t, key("acme", 1), again[0].Key)
		require.NoError(t, other.Rollback(t.Context()))
		again = claimAll(t, l, "invoice")
		require.Len(t, again, 1)
		require.Equal(t, key("acme", 0), again[0].Key)
	})
}

// The statement of a first answer sets few columns, and an answer that changes others takes the general one.
func TestAnEffectThatIsDoneHasNoTroubleAnyMore(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 2)...)
		claimed := claimAll(t, l, "invoice")
		mustSettle(t, l, end(claimed[0], rules.TryAgain), end(claimed[1], rules.Done))
		require.Equal(t, "c", mustExplain(t, l, key("acme", 0)).Row.LastClass)
		h.advance(time.Minute)
		again := claimAll(t, l, "invoice")
		require.Len(t, again, 1)
		require.Equal(t, 2, again[0].Number)
		mustSettle(t, l, end(again[0], rules.Done))
		for _, id := range []int{0, 1} {
			row := mustExplain(t, l, key("acme", id)).Row
			require.Equal(t, []any{rules.Success, "", "", int64(2 - id)}, []any{row.State, row.LastClass, row.LastError, row.Epoch})
		}
	})
}

// An id in a row of once_due means nothing when its effect names another row.
func TestAnIDInAnotherRowMeansNothing(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 2)...)
		claimed := claimAll(t, l, "invoice")
		_, err := l.store.(*postgres).cold.Exec(t.Context(), `INSERT INTO once_due SELECT 99, kind, lane, FALSE, now() - interval '1 hour', grp, ids FROM once_due`)
		require.NoError(t, err)
		require.Empty(t, claimAll(t, l, "invoice"))
		require.Equal(t, []int{2}, l.dueRows(t, "TRUE"), "the claim has deleted the other one")
		mustSettle(t, l, end(claimed[0], rules.Done), end(claimed[1], rules.Done))
		require.Empty(t, l.dueRows(t, "TRUE"))
	})
}
