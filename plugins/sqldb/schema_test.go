package sqldb_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

func schemaOf(dsn string, m sqldb.Migrations) sqldb.Schema {
	return sqldb.Schema{Migrations: m, DSN: setting.NewSecret(dsn), Setting: "plugins.notes.dsn"}
}

// names returns the files of the steps.
func names(m migration.Migration) (all []string) {
	for _, s := range m.Steps {
		all = append(all, s.Name)
	}
	return all
}

// A binary of version 1 and one of version 2 meet a database of each version, with each policy.
func TestSchemasOfTwoVersions(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		older, newer, ctx := schemaOf(dsn, notes(t, 1)), schemaOf(dsn, notes(t, 2)), t.Context()
		prepare := func(s sqldb.Schema, p migration.Policy) error {
			return p.Prepare(ctx, s, slog.New(slog.DiscardHandler))
		}
		refused := func(s sqldb.Schema, p migration.Policy, text string) {
			t.Helper()
			var refusal *migration.Error
			require.ErrorAs(t, prepare(s, p), &refusal)
			require.ErrorContains(t, refusal, text)
		}

		for range 2 { // looking changes nothing
			m, err := newer.Plan(ctx)
			require.NoError(t, err)
			require.Equal(t, []string{"00001_notes.sql", "00002_body.sql"}, names(m))
			require.Equal(t, string(portable.DialectOf(dsn)), m.Kind)
			require.NotEmpty(t, m.Schema)
			require.True(t, strings.HasSuffix(dsn, m.Schema), "%s: %s", dsn, m.Schema)
			require.Equal(t, []int64{0, 2, 2}, []int64{m.Before, m.After, m.Known})
			refused(newer, migration.MatchSchemas, "needs schema version 2, the database is at 0")
			refused(newer, migration.RequireSchemas, "needs schema version 2, the database is at 0")
		}
		if path, ok := strings.CutPrefix(dsn, "sqlite:"); ok {
			require.NoFileExists(t, path)
		}

		m, err := older.Migrate(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"00001_notes.sql"}, names(m))
		require.Equal(t, []int64{0, 1, 1}, []int64{m.Before, m.After, m.Known})
		require.Positive(t, m.Steps[0].Seconds)
		require.NoError(t, prepare(older, migration.MatchSchemas))
		require.NoError(t, prepare(older, migration.RequireSchemas))
		refused(newer, migration.MatchSchemas, "needs schema version 2, the database is at 1")
		m, err = newer.Plan(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"00002_body.sql"}, names(m))

		inUse := connect(t, dsn) // writes of another process are seen, also in SQLite's -wal file
		require.NoError(t, inUse.PingContext(ctx))
		require.NoError(t, prepare(newer, migration.MigrateSchemas))
		require.NoError(t, prepare(newer, migration.MatchSchemas))
		refused(older, migration.MatchSchemas, "knows schema versions up to 1, the database is at 2")
		require.NoError(t, prepare(older, migration.RequireSchemas), "an older instance may start again")
		require.NoError(t, prepare(older, migration.MigrateSchemas))
		m, err = older.Migrate(ctx)
		require.NoError(t, err)
		require.True(t, m.Newer())
		require.Empty(t, m.Steps)
		require.EqualValues(t, 2, m.After)
	})
}

func TestAMigrationThatCanNotRunEndsTheRest(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		files := fstest.MapFS{}
		for _, dialect := range []string{"postgres", "sqlite"} {
			for file, sql := range map[string]string{"1_good": "CREATE TABLE good (a int);", "2_bad": "CREATE TABLE;", "3_good": "CREATE TABLE more (a int);"} {
				files["migrations/"+dialect+"/0000"+file+".sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql + "\n")}
			}
		}
		m, err := schemaOf(dsn, sqldb.Migrations{Name: "bad", Files: files, Table: "bad_migrations", Lock: 8}).Migrate(t.Context())
		require.ErrorContains(t, err, "00002_bad.sql")
		require.NotErrorIs(t, err, pipeline.ErrUnavailable)
		require.Equal(t, []string{"00001_good.sql"}, names(m))
		require.EqualValues(t, 1, m.After)
	})
}

// An open transaction, such as a backup, delays a migration. It does not stop statements behind the
// migration.
func TestAMigrationThatWaitsForALockStopsNoOther(t *testing.T) {
	t.Parallel()
	dsn, ctx := sqldbtest.Schema(t), t.Context()
	_, err := schemaOf(dsn, notes(t, 1)).Migrate(ctx)
	require.NoError(t, err)
	db := connect(t, dsn)
	backup, err := pgx.Connect(ctx, dsn) // without the timeouts of Millrace's sessions
	require.NoError(t, err)
	t.Cleanup(func() { _ = backup.Close(context.Background()) })
	_, err = backup.Exec(ctx, "BEGIN; LOCK TABLE notes IN ACCESS SHARE MODE")
	require.NoError(t, err)

	var migrating errgroup.Group
	migrating.Go(func() error {
		_, err := schemaOf(dsn, notes(t, 2)).Migrate(ctx)
		return err
	})
	require.Eventually(t, func() bool {
		var waits bool
		require.NoError(t, db.QueryRowContext(ctx, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'notes'::regclass").Scan(&waits))
		return waits
	}, 2*time.Minute, 10*time.Millisecond)
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err = db.ExecContext(bounded, "INSERT INTO notes (id) VALUES (1)")
	require.NoError(t, err)
	require.NoError(t, backup.Close(ctx))
	require.NoError(t, migrating.Wait())
	m, err := schemaOf(dsn, notes(t, 2)).Plan(ctx)
	require.NoError(t, err)
	require.Empty(t, m.Steps)
}

func TestASchemaThatTheRoleDoesNotSee(t *testing.T) {
	t.Parallel()
	schema := schemaOf(sqldbtest.Schema(t)+"_absent", notes(t, 2))
	_, err := schema.Plan(t.Context())
	require.ErrorContains(t, err, "sees no schema of the search_path")
	_, err = schema.Migrate(t.Context())
	require.ErrorContains(t, err, "sees no schema of the search_path")
}

func TestExplainNamesTheRoles(t *testing.T) {
	t.Parallel()
	denied := &pgconn.PgError{Code: "42501", Message: "permission denied for table ledger_audit"}
	require.ErrorIs(t, sqldb.Explain(denied), denied)
	require.ErrorContains(t, sqldb.Explain(denied), "Roles in PostgreSQL")
	require.ErrorContains(t, sqldb.Explain(denied), "an operator's for a command that changes something", "the right of another role is not granted")
	other := errors.New("other")
	require.Same(t, other, sqldb.Explain(other))
	require.NoError(t, sqldb.Explain(nil))
}

func TestASchemaThatCanNotBeOpened(t *testing.T) {
	t.Parallel()
	for dsn, text := range map[string]string{
		"mysql://db":             "plugins.notes.dsn: notes: dsn must begin with",
		"sqlite:":                "plugins.notes.dsn: notes: dsn: sqlite needs the path of a file",
		"postgres://db:a":        "plugins.notes.dsn: notes: dsn:",
		"sqlite:a?synchronous=%": "plugins.notes.dsn: notes: dsn:",
	} {
		t.Run(dsn, func(t *testing.T) {
			t.Parallel()
			_, err := schemaOf(dsn, notes(t, 2)).Plan(t.Context())
			require.ErrorContains(t, err, text)
			require.NotErrorIs(t, err, pipeline.ErrUnavailable)
		})
	}
}

// A pooler in transaction mode gives a client the session of another one: its prepared statements are
// there, and those of the client are not. The error names the pooler and the remedy.
func TestExplainNamesThePooler(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		conn, err := pgx.Connect(t.Context(), sqldbtest.Schema(t))
		require.NoError(t, err)
		defer func() { _ = conn.Close(t.Context()) }()
		for _, statements := range []string{"PREPARE stmt AS SELECT 1; PREPARE stmt AS SELECT 1", "EXECUTE another"} {
			_, err := conn.PgConn().Exec(t.Context(), statements).ReadAll()
			require.Error(t, err)
			require.ErrorIs(t, sqldb.Explain(err), err)
			require.ErrorContains(t, sqldb.Explain(err), "PgBouncer")
			require.ErrorContains(t, sqldb.Explain(err), "pool_mode to session")
			why, ok := sqldb.RefusalOf(err)
			require.True(t, ok)
			require.Contains(t, why.Repair(), "pool_mode to session")
		}
	})
}
