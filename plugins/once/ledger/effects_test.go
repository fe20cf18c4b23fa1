package ledger

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// All effects of a group are read once, over several pages, in the order of the bytes of their ids, and while others
// are accepted and settled. Nothing of the database is held meanwhile.
func TestEachEffectIsReadOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		group := Group{Kind: "invoice", Name: "acme"}
		const n = 2*effectPage + 7
		mustAccept(t, l, records("acme", n)...)
		mustAccept(t, l, record("zeta", 1), Record{Key: Key{Kind: "mail", Group: "acme", ID: "m"}, Payload: []byte("{}")})
		odd := Record{Key: Key{Kind: "invoice", Group: "acme", ID: "Ärger 7"}, Payload: []byte(`{"odd":1}`)}
		mustAccept(t, l, odd)
		claimed := claimAll(t, l, "invoice")
		claimed = slices.DeleteFunc(claimed, func(c Claimed) bool { return c.Group != "acme" })
		require.Greater(t, len(claimed), 3)
		outcomes := []rules.Outcome{rules.Done, rules.Rejected, rules.Unclear}
		for i, o := range outcomes {
			mustSettle(t, l, end(claimed[i], o))
		}

		var ids []string
		got := map[string]Effect{}
		require.NoError(t, l.EachEffect(t.Context(), group, true, func(e Effect) error {
			if len(ids) == 0 {
				mustAccept(t, l, Record{Key: Key{Kind: "invoice", Group: "acme", ID: "a first one"}, Payload: []byte("{}")}) // it is behind the page
				mustSettle(t, l, end(claimed[3], rules.Done))
			}
			if pg, ok := l.store.(*postgres); ok {
				require.Zero(t, pg.cold.Stat().AcquiredConns(), "a connection is held while the caller works")
			}
			ids = append(ids, e.ID)
			got[e.ID] = e
			return nil
		}))
		require.Len(t, ids, n+1)
		require.Len(t, got, n+1, "each one once")
		require.True(t, slices.IsSorted(ids))
		require.NotContains(t, got, "a first one")
		require.Equal(t, `{"odd":1}`, string(got["Ärger 7"].Payload))
		for i, want := range []Effect{
			{State: rules.Success, Receipt: "r-" + claimed[0].ID}, {State: rules.Failed}, {State: rules.Ambiguous, PerhapsDone: true},
		} {
			e := got[claimed[i].ID]
			require.Equal(t, want, Effect{State: e.State, Receipt: e.Receipt, PerhapsDone: e.PerhapsDone}, claimed[i].ID)
			require.False(t, e.AcceptedAt.IsZero())
			require.Equal(t, e.State.Settled(), !e.SettledAt.IsZero())
		}
		require.True(t, got[claimed[4].ID].PerhapsDone, "a request is under way")

		require.NoError(t, l.EachEffect(t.Context(), Group{Kind: "invoice", Name: "zeta"}, false, func(e Effect) error {
			require.Equal(t, "n1", e.ID)
			require.Nil(t, e.Payload)
			return nil
		}))
		enough := errors.New("enough")
		seen := 0
		require.ErrorIs(t, l.EachEffect(t.Context(), group, false, func(Effect) error {
			if seen++; seen == 3 {
				return enough
			}
			return nil
		}), enough)
		require.Equal(t, 3, seen)
		require.ErrorIs(t, l.EachEffect(t.Context(), Group{Kind: "nobody's", Name: "x"}, false, nil), ErrNotFound)
	})
}

// An effect that a restored ledger may have lost a call of is perhaps done.
func TestAnEffectOfARestoredLedgerIsPerhapsDone(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, record("acme", 1))
		perhaps := func() (is bool) {
			require.NoError(t, l.EachEffect(t.Context(), Group{Kind: "invoice", Name: "acme"}, false, func(e Effect) error { is = e.PerhapsDone; return nil }))
			return is
		}
		require.False(t, perhaps())
		h.advance(time.Minute)
		now, err := l.Now(t.Context())
		require.NoError(t, err)
		require.WithinDuration(t, l.clock(t), now, time.Minute/2)
		_, err = l.Recover(t.Context(), "invoice", now.Add(-time.Hour), operator)
		require.NoError(t, err)
		require.True(t, perhaps())
	})
}

// SQLite reads a page of a group by its key, and sorts nothing.
func TestEffectPageOfSQLite(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		if _, ok := l.store.(*sqliteStore); !ok {
			return // TestPlansOfPostgres
		}
		for _, sql := range []string{sqlEffectPage, sqlEffectAndPayloadPage} {
			require.Equal(t, "SEARCH once_effects USING INDEX sqlite_autoindex_once_effects_1 (kind=? AND grp=? AND id>?)", sqlitePlan(t, l, sql, 1, "g", "x", 9))
		}
		require.Contains(t, sqlitePlan(t, l, strings.Replace(sqlEffectPage, "ORDER BY kind, grp, id", "ORDER BY part", 1), 1, "g", "x", 9), "TEMP B-TREE", "the check can fail")
	})
}

func sqlitePlan(t *testing.T, l *Ledger, sql string, args ...any) string {
	var lines []string
	require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
		return q.query(t.Context(), func(r scanner) error {
			var id, parent, unused int
			var detail string
			err := r.Scan(&id, &parent, &unused, &detail)
			lines = append(lines, detail)
			return err
		}, "EXPLAIN QUERY PLAN "+sql, args...)
	}))
	return strings.Join(lines, "\n")
}
