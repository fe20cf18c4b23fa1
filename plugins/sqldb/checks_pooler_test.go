package sqldb_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// PgBouncer in front of PostgreSQL is found, and so is whether it gives the session of an idle connection to another
// one.
func TestChecksOfAPooler(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]operate.Check{
		"session": {
			Name: "postgres pooler", Level: operate.OK,
			Text: "a pooler such as PgBouncer is in between, and each connection kept its session, as with pool_mode session",
		},
		"transaction": {
			Name: "postgres pooler", Level: operate.Fail,
			Text:   "a pooler such as PgBouncer shares sessions: another connection got the session of one that was idle, as with pool_mode transaction",
			Remedy: "set pool_mode to session for this database, or name PostgreSQL itself in the DSN, because prepared statements and settings belong to a session",
		},
		"statement": {
			Name: "postgres pooler", Level: operate.Fail,
			Text:   "a pooler such as PgBouncer refuses transactions, as with pool_mode statement",
			Remedy: "set pool_mode to session for this database, or name PostgreSQL itself in the DSN, because the tables are written in transactions",
		},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dsn := sqldbtest.Schema(t)
			schema := schemaOf(sqldbtest.Pooler(t, dsn, mode), notes(t, 2))
			if mode == "session" {
				_, err := schema.Migrate(t.Context())
				require.NoError(t, err, "our sessions work through it")
			}
			d := operate.Diagnose(t.Context(), schema.Examinations()[1:], 2*time.Minute, nil) // of the server, not of the tables
			i := slices.IndexFunc(d.Checks, func(c operate.Check) bool { return strings.HasSuffix(c.Name, " pooler") })
			require.GreaterOrEqual(t, i, 0, d.Checks)
			d.Checks[i].Name = want.Name
			require.Equal(t, want, d.Checks[i])
			require.Empty(t, d.Away)
		})
	}
}
