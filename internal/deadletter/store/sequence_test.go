package store

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Logical replication copies rows and no sequences. A number that a table has already must not be
// read as a dead letter that was stored before.
func TestASequenceBehindItsTableLosesNoDeadLetter(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		dsn := setting.NewSecret(sqldbtest.Schema(t))
		_, err := Schema(sqldb.Databases{}, dsn, "", nil).Migrate(t.Context())
		require.NoError(t, err)
		s, err := Connect(t.Context(), sqldb.Databases{}, dsn, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		exec := func(sql string) {
			t.Helper()
			_, err := s.db.ExecContext(t.Context(), sql)
			require.NoError(t, err, sql)
		}
		// repaired runs the statement that the error names.
		repaired := func(err error, table string) {
			t.Helper()
			require.ErrorContains(t, err, table)
			statement := regexp.MustCompile(`SELECT setval.*FROM \w+`).FindString(err.Error())
			require.NotEmpty(t, statement, err)
			exec(statement)
		}

		for n := range 3 {
			mustPut(t, s, orderDeadLetter(n))
			mustReplay(t, s, orderDeadLetter(n).ID, false)
		}
		exec(`ALTER TABLE dead_letters ALTER COLUMN seq RESTART WITH 1`)
		err = s.Put(t.Context(), orderDeadLetter(7))
		require.Error(t, err)
		repaired(err, "dead_letters.seq")
		mustPut(t, s, orderDeadLetter(7))
		mustGet(t, s, orderDeadLetter(7).ID)

		exec(`ALTER TABLE dead_letter_actions ALTER COLUMN id RESTART WITH 1`)
		stored, _ := mustGet(t, s, orderDeadLetter(1).ID)
		again := failedReplay(stored, 1, 1)
		err = s.Put(t.Context(), again)
		require.Error(t, err, "the failure of a replay was not recorded")
		repaired(err, "dead_letter_actions.id")
		mustPut(t, s, again)
		stored, _ = mustGet(t, s, orderDeadLetter(1).ID)
		require.Equal(t, Parked, stored.State)
	})
}
