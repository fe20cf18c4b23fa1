package store

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// prunes returns what dead_letter_prunes says: who and how many.
func prunes(t *testing.T, s *Store) (rows map[string]int64) {
	t.Helper()
	rows = map[string]int64{}
	require.NoError(t, s.query(t.Context(), s.db, func(r *sql.Rows) error {
		var who string
		var n int64
		err := r.Scan(&who, &n)
		rows[who] += n
		return err
	}, `SELECT who, letters FROM dead_letter_prunes WHERE why = 'old'`))
	return rows
}

func TestPrune(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		byState := map[State]DeadLetter{Open: orderDeadLetter(1), Replaying: orderDeadLetter(2), Replayed: orderDeadLetter(3), Parked: orderDeadLetter(4), Discarded: orderDeadLetter(5)}
		for _, l := range byState {
			mustPut(t, s, l)
		}
		_, err := s.Begin(t.Context(), byState[Replaying].ID, By{Who: "ann", Why: "fixed"}, false)
		require.NoError(t, err)
		mustReplay(t, s, byState[Replayed].ID, false)
		mustReplay(t, s, byState[Parked].ID, false)
		mustPut(t, s, failedReplay(byState[Parked], 1, 1))
		require.NoError(t, s.Discard(t.Context(), byState[Discarded].ID, By{Who: "ann", Why: "a test's"}))

		prune := func(who string, f Filter) int64 {
			n, err := s.Prune(t.Context(), f, By{Who: who, Why: "old"}, nil)
			require.NoError(t, err)
			return n
		}
		require.Zero(t, prune("early", Filter{States: Finished(), Unchanged: time.Now().Add(-time.Hour)}), "they were changed later")
		future := time.Now().Add(time.Hour)
		require.EqualValues(t, 1, prune("one", Filter{States: []State{Discarded}, Unchanged: future}))
		require.EqualValues(t, 1, prune("all", Filter{States: Finished(), Unchanged: future}))
		for state, l := range byState {
			got, actions, err := s.Get(t.Context(), l.ID)
			if state == Replayed || state == Discarded {
				require.ErrorIs(t, err, ErrNotFound, state)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, state, got.State)
			require.Equal(t, state == Open, len(actions) == 0)
		}
		require.Equal(t, map[string]int64{"early": 0, "one": 1, "all": 1}, prunes(t, s))
		for _, states := range [][]State{nil, {Open}, {Replayed, Parked}} {
			_, err := s.Prune(t.Context(), Filter{States: states, Unchanged: future}, By{Who: "ann", Why: "old"}, nil)
			require.ErrorContains(t, err, "only replayed and discarded ones are pruned")
		}

		// Stored again, it is a new dead letter that can be replayed: no action of the pruned one
		// is left.
		mustPut(t, s, byState[Replayed])
		mustReplay(t, s, byState[Replayed].ID, false)
	})
}

// What nothing was deleted of has no record, because the audit would say that it was done. What was deleted before an error
// has one.
func TestAPruneThatFailsIsRecordedForWhatItDeleted(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		batch := make([]DeadLetter, pruneBatch+1)
		for i := range batch {
			batch[i] = orderDeadLetter(i)
		}
		mustPut(t, s, batch...)
		_, err := s.db.ExecContext(t.Context(), `UPDATE dead_letters SET state = 'replayed'`)
		require.NoError(t, err)
		refuse := []string{
			`CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'no right'; END $$ LANGUAGE plpgsql`,
			`CREATE TRIGGER refuse BEFORE DELETE ON dead_letters FOR EACH ROW WHEN (OLD.seq = %d) EXECUTE FUNCTION refuse()`,
		}
		drop := `DROP TRIGGER refuse ON dead_letters`
		if s.db.Dialect == portable.SQLite {
			refuse, drop = []string{`CREATE TRIGGER refuse BEFORE DELETE ON dead_letters WHEN OLD.seq = %d BEGIN SELECT RAISE(ABORT, 'no right'); END`}, `DROP TRIGGER refuse`
		}
		prune := func(who string, refused DeadLetter) (int64, error) {
			for _, statement := range refuse {
				if strings.Contains(statement, "%d") {
					statement = fmt.Sprintf(statement, refused.seq)
				}
				_, err := s.db.ExecContext(t.Context(), statement)
				require.NoError(t, err)
			}
			refuse = refuse[len(refuse)-1:]
			n, err := s.Prune(t.Context(), Filter{States: Finished(), Unchanged: time.Now().Add(time.Hour)}, By{Who: who, Why: "old"}, nil)
			_, wrong := s.db.ExecContext(t.Context(), drop)
			require.NoError(t, wrong)
			return n, err
		}
		list, _, err := s.List(t.Context(), Filter{}, len(batch))
		require.NoError(t, err)
		n, err := prune("ann", list[len(list)-1]) // of the first batch
		require.ErrorContains(t, err, "no right")
		require.Zero(t, n)
		require.Empty(t, prunes(t, s))
		n, err = prune("bob", list[0]) // of the second one
		require.ErrorContains(t, err, "no right")
		require.EqualValues(t, pruneBatch, n)
		require.Equal(t, map[string]int64{"bob": pruneBatch}, prunes(t, s))
		page, err := s.RecentPrunes(t.Context(), operate.AuditFilter{}, 10)
		require.NoError(t, err)
		require.Len(t, page.Changes, 1)
		require.Equal(t, "1000 dead letters deleted", page.Changes[0].Detail)
	})
}

// TestPruneInBatches: more dead letters than one transaction deletes.
func TestPruneInBatches(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		batch := make([]DeadLetter, pruneBatch+1)
		for i := range batch {
			batch[i] = orderDeadLetter(i)
		}
		mustPut(t, s, batch...)
		_, err := s.db.ExecContext(t.Context(), `UPDATE dead_letters SET state = 'replayed'`)
		require.NoError(t, err)
		var totals []int64
		n, err := s.Prune(t.Context(), Filter{States: Finished(), Unchanged: time.Now().Add(time.Hour)}, By{Who: "ann", Why: "old"}, func(total int64) { totals = append(totals, total) })
		require.NoError(t, err)
		require.EqualValues(t, len(batch), n)
		require.Equal(t, []int64{pruneBatch, n}, totals)
		require.Equal(t, map[string]int64{"ann": n}, prunes(t, s))
	})
}
