package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

const testGrace = 30 * time.Second

// openGrace opens an instance whose invoices wait for ClaimRows.
func (h *testDB) openGrace(t *testing.T, tunes ...tune) *Ledger {
	l := h.open(t, tunes...)
	require.NoError(t, l.Register(t.Context(), Kind{Name: "invoice", Policy: policyOf("invoice"), Grace: testGrace}))
	return l
}

// mustEnter accepts records and returns the rows that they wait in, each once.
func mustEnter(t *testing.T, l *Ledger, records ...Record) (rows []int64) {
	results, err := l.Accept(t.Context(), records)
	require.NoError(t, err)
	for _, r := range results {
		require.NoError(t, r.Err)
		if !slices.Contains(rows, r.Row) {
			rows = append(rows, r.Row)
		}
	}
	return rows
}

// A row is claimed by its number before its grace has ended, also a part at a time, and by its lane after that.
func TestARowIsClaimedByItsNumber(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.openGrace(t)
		all := records("acme", 70)
		rows := mustEnter(t, l, all...)
		require.Len(t, rows, 2, "%d effects in a row", dueIDs)
		due, err := l.Due(t.Context(), "invoice")
		require.NoError(t, err)
		require.Empty(t, due.Lanes)
		require.Greater(t, due.Next, testGrace/2)
		x, err := l.Explain(t.Context(), all[0].Key)
		require.NoError(t, err)
		require.Equal(t, rules.Send, x.NextCall)
		require.Greater(t, x.NextCallIn, testGrace/2, "nobody knows when an entry is read")

		met := map[Key]bool{}
		claim := func(rows []int64, limit int) (claimed int, rest []int64) {
			got, rest, err := l.ClaimRows(t.Context(), "invoice", rows, limit)
			require.NoError(t, err)
			for _, c := range got {
				require.False(t, met[c.Key], "%s is claimed once", c.ID)
				require.EqualValues(t, 1, c.Epoch)
				met[c.Key] = true
			}
			return len(got), rest
		}
		n, rest := claim(rows[:1], 30)
		require.Equal(t, 30, n)
		require.Equal(t, rows[:1], rest)
		n, rest = claim(rows, 25)
		require.Equal(t, 25, n)
		require.NotEmpty(t, rest)
		h.advance(testGrace) // the entries are lost
		for _, c := range claimAll(t, l, "invoice") {
			if c.Epoch == 1 { // otherwise its lease has ended, too
				require.False(t, met[c.Key])
				met[c.Key] = true
			}
		}
		require.Len(t, met, len(all))
		n, rest = claim(rows, 100) // the entries come late, and twice
		require.Zero(t, n)
		require.Empty(t, rest)
	})
}

// A number tells where to look and decides nothing: those of calls, of retries and of other kinds give no effect.
func TestANumberAloneGivesNoEffect(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.openGrace(t)
		rows := mustEnter(t, l, records("acme", 3)...)
		claimed, rest, err := l.ClaimRows(t.Context(), "parcel", rows, 10)
		require.NoError(t, err)
		require.Empty(t, claimed, "they are of another kind")
		require.Empty(t, rest)
		claimed, _, err = l.ClaimRows(t.Context(), "invoice", rows, 10)
		require.NoError(t, err)
		require.Len(t, claimed, 3)
		mustSettle(t, l, end(claimed[0], rules.TryAgain))
		again, rest, err := l.ClaimRows(t.Context(), "invoice", append(rows, l.dueNumbers(t, "calling")...), 10)
		require.NoError(t, err)
		require.Empty(t, again)
		require.Empty(t, rest)
		_, _, err = l.ClaimRows(t.Context(), "invoice", nil, 10)
		require.ErrorIs(t, err, rules.ErrInvalid)
	})
}

func (l *Ledger) dueNumbers(t *testing.T, condition string) (numbers []int64) {
	require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
		return q.query(t.Context(), func(r scanner) error {
			var n int64
			err := r.Scan(&n)
			numbers = append(numbers, n)
			return err
		}, `SELECT number FROM once_due WHERE number IS NOT NULL AND `+condition)
	}))
	return numbers
}

// Effects of a caller's transaction have no row for ClaimRows, because only the caller knows of the commit.
func TestATransactionOfACallerHasNoGrace(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.openGrace(t)
		tx := h.begin(t)
		require.NoError(t, l.AcceptTx(t.Context(), PgxTx(tx), records("acme", 2)))
		require.NoError(t, tx.Commit(t.Context()))
		require.Len(t, claimAll(t, l, "invoice"), 2)
	})
}

// Effects with a time of their own wait for it, and their group is paused as without a grace.
func TestWhatHoldsAnEffectBackHoldsItsRowBack(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.openGrace(t)
		later := record("acme", 9)
		later.NotBefore = l.clock(t).Add(testGrace / 2)
		require.Equal(t, []int64{0}, mustEnter(t, l, later))
		rows := mustEnter(t, l, records("acme", 3)...)
		none := func(why string) {
			claimed, rest, err := l.ClaimRows(t.Context(), "invoice", rows, 10)
			require.NoError(t, err)
			require.Empty(t, claimed, why)
			require.Empty(t, rest, why)
		}
		require.NoError(t, l.PauseKind(t.Context(), "invoice", operator))
		none("the kind is paused")
		require.NoError(t, l.ResumeKind(t.Context(), "invoice", operator))
		require.NoError(t, l.Pause(t.Context(), acme, operator))
		none("the group is paused")
		require.NoError(t, l.Resume(t.Context(), acme, operator))
		none("nobody has looked for what waited for the resume")
		require.NoError(t, l.Sweep(t.Context()))
		claimed := claimAll(t, l, "invoice")
		require.Len(t, claimed, 3, "without the grace")
		for _, c := range claimed {
			mustSettle(t, l, end(c, rules.Done))
		}
		h.advance(testGrace / 2)
		require.Len(t, claimAll(t, l, "invoice"), 1)
	})
}
