package sqldb_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// diagnose returns the checks of schemas by name, without the address of the server.
func diagnose(t *testing.T, schemas ...sqldb.Schema) (map[string]operate.Check, operate.Diagnosis) {
	t.Helper()
	var places []operate.Examination
	for _, s := range schemas {
		places = append(places, s.Examinations()...)
	}
	d := operate.Diagnose(t.Context(), places, 2*time.Minute, nil) // the machine may be busy
	checks := map[string]operate.Check{}
	for _, c := range d.Checks {
		if words := strings.Fields(c.Name); words[0] == "postgres" && len(words) == 5 { // postgres NAME at ADDRESS what
			c.Name = "postgres " + words[4]
		}
		require.NotContains(t, checks, c.Name)
		require.Equal(t, c.Level == operate.OK, c.Remedy == "", c)
		checks[c.Name] = c
	}
	return checks, d
}

func TestChecksOfTheTables(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		older, newer := schemaOf(dsn, notes(t, 1)), schemaOf(dsn, notes(t, 2))
		checks, d := diagnose(t, newer)
		require.Equal(t, operate.Fail, checks["notes migrations"].Level)
		require.Contains(t, checks["notes migrations"].Text, "the database is at version 0, and this binary needs version 2")
		require.Empty(t, d.Away)
		_, err := newer.Migrate(t.Context())
		require.NoError(t, err)
		checks, _ = diagnose(t, newer)
		require.Equal(t, operate.OK, checks["notes migrations"].Level, checks)
		checks, _ = diagnose(t, older)
		require.Equal(t, operate.Warn, checks["notes migrations"].Level)
		require.Contains(t, checks["notes migrations"].Text, "versions up to 1")
		if portable.DialectOf(dsn) == portable.Postgres {
			_, err := connect(t, dsn).ExecContext(t.Context(), "CREATE TABLE large AS SELECT md5(n::text) AS text FROM generate_series(1, 60000) n; ANALYZE large")
			require.NoError(t, err)
			_, err = connect(t, sqldbtest.Schema(t)).ExecContext(t.Context(), "CREATE TABLE of_others ()")
			require.NoError(t, err)
			want := regexp.MustCompile(`^3 tables with [1-9] MiB, with indexes; the largest are large [1-9] MiB \(60000 live and 0 dead rows\), `)
			require.Eventually(t, func() bool { // a session tells its statistics a little later
				checks, _ = diagnose(t, older)
				return want.MatchString(checks["notes tables"].Text)
			}, 2*time.Minute, 10*time.Millisecond)
			require.Equal(t, operate.Warn, checks["notes rights"].Level, "the tests connect as a superuser")
			require.Contains(t, checks["notes rights"].Text, "as a superuser")
		}
	})
}

func TestChecksOfPostgres(t *testing.T) {
	t.Parallel()
	dsn := sqldbtest.Schema(t)
	checks, _ := diagnose(t, schemaOf(dsn, notes(t, 1)))
	require.Len(t, checks, 9)
	require.Equal(t, operate.OK, checks["postgres version"].Level)
	require.Equal(t, operate.OK, checks["postgres pooler"].Level, checks["postgres pooler"])
	require.Equal(t, operate.OK, checks["postgres clock"].Level, checks["postgres clock"])
	require.Regexp(t, `^[1-9]\d* of \d+ are open`, checks["postgres connections"].Text)
	require.Contains(t, checks["postgres transactions"].Text, "of all users")

	// The settings of a session are those of the DSN, as with ALTER ROLE.
	checks, _ = diagnose(t, schemaOf(dsn+"&synchronous_commit=off", notes(t, 1)))
	require.Equal(t, operate.Fail, checks["postgres durability"].Level)
	require.Contains(t, checks["postgres durability"].Text, "synchronous_commit is off")
}

func TestChecksOfARole(t *testing.T) {
	t.Parallel()
	dsn := sqldbtest.Schema(t)
	schema := schemaOf(dsn, notes(t, 2))
	_, err := schema.Migrate(t.Context())
	require.NoError(t, err)
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	name := u.Query().Get("search_path")
	role := name + "_role"
	admin := connect(t, dsn)
	exec := func(sql string) {
		t.Helper()
		_, err := admin.ExecContext(t.Context(), sql)
		require.NoError(t, err)
	}
	exec("CREATE ROLE " + role + " LOGIN CONNECTION LIMIT 1000")
	defer exec("DROP OWNED BY " + role + "; DROP ROLE " + role)
	exec("GRANT USAGE ON SCHEMA " + name + " TO " + role)
	exec("GRANT SELECT ON ALL TABLES IN SCHEMA " + name + " TO " + role)
	u.User = url.User(role)
	as := schemaOf(u.String(), notes(t, 2))

	checks, _ := diagnose(t, as)
	require.Equal(t, operate.Warn, checks["notes rights"].Level)
	require.Contains(t, checks["notes rights"].Text, "may only read the tables, so a service can't work")
	require.Contains(t, checks["postgres transactions"].Text, "of this user")
	require.Regexp(t, `^\d+ of \d+ are open, of all clients; [1-9]\d* of 1000 are open, of this user$`, checks["postgres connections"].Text)
	exec("CREATE TABLE of_others ()") // in the same schema
	exec("GRANT INSERT ON notes TO " + role)
	checks, _ = diagnose(t, as)
	require.Equal(t, operate.Fail, checks["notes rights"].Level)
	require.Equal(t, "user "+role+" lacks UPDATE on "+name+".notes; DELETE on "+name+".notes", checks["notes rights"].Text)
	_, grants, _ := strings.Cut(checks["notes rights"].Remedy, ": ")
	exec(grants)
	checks, _ = diagnose(t, as)
	require.Equal(t, operate.OK, checks["notes rights"].Level, checks["notes rights"])
	require.Contains(t, checks["notes rights"].Text, "has the 5 rights")
	exec("REVOKE SELECT ON notes FROM " + role)
	checks, d := diagnose(t, as)
	require.Equal(t, operate.Fail, checks["notes rights"].Level)
	require.Contains(t, checks["notes rights"].Text, "lacks SELECT on "+name+".notes")
	require.Empty(t, d.Away)

	u.User = url.User(role + "_unknown")
	checks, d = diagnose(t, schemaOf(u.String(), notes(t, 2)))
	require.Contains(t, checks["notes"].Text, "does not exist")
	require.Len(t, d.Away, 2, "the tables, and the server")
}

// Two stores in one database share the examination of the server, which has the address in its name.
func TestChecksOfAnAbsentPostgres(t *testing.T) {
	t.Parallel()
	checks, d := diagnose(t, schemaOf("postgres://nobody@127.0.0.1:1/none?sslmode=disable", notes(t, 1)))
	require.Equal(t, []string{"notes", "postgres none at 127.0.0.1:1"}, d.Away)
	require.Contains(t, checks["notes"].Text, "127.0.0.1:1")
}
