package sqldb_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// A refusal is shown while it comes again, also if other statements of the operation work in between, and no longer.
func TestARefusalIsShownUntilTheOperationWorks(t *testing.T) {
	t.Parallel()
	denied := func(table string) error {
		return &pgconn.PgError{Severity: "ERROR", Code: "42501", Message: "permission denied for table " + table}
	}
	synctest.Test(t, func(t *testing.T) {
		var r sqldb.Refusals
		said := func() string {
			c, refused := r.Check(time.Now())
			if !refused {
				return ""
			}
			return c.Text
		}
		began := time.Now()
		r.Note("claim", errors.New("no idea"), false)
		r.Note("claim", nil, false)
		require.Empty(t, said())
		r.Note("settle", denied("b"), true)
		time.Sleep(10 * time.Second)
		r.Note("claim", denied("a"), true)
		r.Note("settle", denied("b"), true)
		r.Note("settle", nil, false)
		require.Equal(t, "the database refuses statements of this instance, since "+began.UTC().Format(time.RFC3339)+
			", for 10s: settle: ERROR: permission denied for table b (SQLSTATE 42501); claim: ERROR: permission denied for table a (SQLSTATE 42501)", said())
		time.Sleep(20 * time.Second)
		require.Contains(t, said(), ", for 20s: claim: ERROR: permission denied for table a (SQLSTATE 42501)")
		require.NotContains(t, said(), "settle")
		r.Note("claim", nil, false)
		require.Empty(t, said())
		r.Note("claim", denied("a"), true)
		r.Note("claim", errors.New("no idea"), false)
		time.Sleep(time.Minute)
		require.Contains(t, said(), ", for 1m0s: claim: ")
		time.Sleep(5 * time.Minute)
		require.Empty(t, said(), "nobody has tried")
	})
}
