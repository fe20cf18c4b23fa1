package store

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
