package store

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// The audit has what persons did, the newest first and page by page, and not what happened by itself.
func TestRecentActions(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		before := time.Now().Add(-time.Minute)
		replayed, discarded, held := orderDeadLetter(1), orderDeadLetter(2), orderDeadLetter(3)
		mustPut(t, s, replayed, discarded, held)
		mustReplay(t, s, replayed.ID, false)
		mustPut(t, s, failedReplay(replayed, 1, 1)) // a return, by nobody
		require.NoError(t, s.Discard(t.Context(), discarded.ID, By{Who: "bob (console, operator)", Why: "a test's"}))
		require.NoError(t, s.RecordReveal(t.Context(), By{Who: "carol (API, admin)", Why: "ticket 7"}, held.ID))
		require.NoError(t, s.RecordReveal(t.Context(), By{Who: "carol (API, admin)", Why: "ticket 7"}, held.ID), "each look is a row")
		require.ErrorIs(t, s.RecordReveal(t.Context(), By{Who: "carol", Why: "x"}, "absent"), ErrNotFound)
		mustReplay(t, s, held.ID, false) // a reveal keeps nothing from being done

		var got []string
		filter := operate.AuditFilter{}
		for {
			page, err := s.RecentActions(t.Context(), filter, 2)
			require.NoError(t, err)
			for _, c := range page.Changes {
				require.True(t, c.At.After(before) && time.Since(c.At) < time.Hour, c.At)
				got = append(got, fmt.Sprint(c.Action, " ", c.Subject, " by ", c.Who, ": ", c.Why, ", ", c.Outcome))
			}
			if filter.Before = page.Next; page.Next == "" {
				break
			}
		}
		reveal := "reveal " + held.ID + " by carol (API, admin): ticket 7, shown"
		require.Equal(t, []string{
			"replay " + held.ID + " by ann: fixed, replayed", reveal, reveal,
			"discard " + discarded.ID + " by bob (console, operator): a test's, discarded", "replay " + replayed.ID + " by ann: fixed, replayed",
		}, got)

		page, err := s.RecentActions(t.Context(), operate.AuditFilter{Who: "CONSOLE"}, 2)
		require.NoError(t, err)
		require.Len(t, page.Changes, 1)
		_, err = s.RecentActions(t.Context(), operate.AuditFilter{Before: "7 OR 1=1"}, 2)
		require.ErrorContains(t, err, "before must be the id of a change")

		_, err = s.Prune(t.Context(), Filter{States: Finished(), Unchanged: time.Now().Add(time.Hour)}, By{Who: "dave", Why: "old"}, nil)
		require.NoError(t, err)
		page, err = s.RecentPrunes(t.Context(), operate.AuditFilter{}, 2)
		require.NoError(t, err)
		require.Len(t, page.Changes, 1)
		require.Equal(t, []string{"dave", "old", "prune", "2 dead letters deleted"},
			[]string{page.Changes[0].Who, page.Changes[0].Why, page.Changes[0].Action, page.Changes[0].Detail})
	})
}

// The migration that permits reveals keeps the rows with their ids, and gives no id again. It may run on what it
// has made, so the test runs it on a table with rows.
func TestTheMigrationOfRevealsKeepsTheAudit(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		letter, other := orderDeadLetter(1), orderDeadLetter(2)
		mustPut(t, s, letter, other)
		mustReplay(t, s, letter.ID, false)
		mustPut(t, s, failedReplay(letter, 1, 1))
		require.NoError(t, s.Discard(t.Context(), other.ID, By{Who: "ann", Why: "a test's", Use: "one"}))
		_, before := mustGet(t, s, letter.ID)
		newest := func() string {
			page, err := s.RecentActions(t.Context(), operate.AuditFilter{}, 1)
			require.NoError(t, err)
			return page.Changes[0].ID
		}
		last, err := strconv.Atoi(newest())
		require.NoError(t, err)
		_, err = s.exec(t.Context(), s.db, `DELETE FROM dead_letter_actions WHERE id = $1`, last)
		require.NoError(t, err)

		folder := map[portable.Dialect]string{portable.SQLite: "sqlite", portable.Postgres: "postgres"}[s.db.Dialect]
		migration, err := migrationFiles.ReadFile("migrations/" + folder + "/00008_reveals.sql")
		require.NoError(t, err)
		up, _, _ := strings.Cut(string(migration), "-- +goose Down")
		for _, statement := range strings.Split(strings.TrimSpace(up), ";\n") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			_, err := s.exec(t.Context(), s.db, statement)
			require.NoError(t, err, statement)
		}
		_, after := mustGet(t, s, letter.ID)
		require.Equal(t, before, after)
		require.NoError(t, s.RecordReveal(t.Context(), By{Who: "carol", Why: "x"}, letter.ID))
		next, err := strconv.Atoi(newest())
		require.NoError(t, err)
		require.Greater(t, next, last, "the id of a row that is gone was given again")
		insert := `INSERT INTO dead_letter_actions (dead_letter, generation, action, who, why, at, outcome, detail) VALUES ($1, $2, $3, '', '', $4, 'replayed', '')`
		_, err = s.exec(t.Context(), s.db, insert, letter.ID, 1, "erase", time.Now())
		require.Error(t, err, "an action that no version knows")
		_, err = s.exec(t.Context(), s.db, insert, letter.ID, 1, "replay", time.Now())
		require.Error(t, err, "a generation is replayed once")
	})
}
