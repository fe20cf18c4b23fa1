package sqldb_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// inFile returns a secret of a file, and a function that replaces the file in one step.
func inFile(t *testing.T, value string) (s setting.Secret, replace func(value string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dsn")
	replace = func(value string) {
		require.NoError(t, os.WriteFile(file+".new", []byte(value+"\n"), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	replace(value)
	require.NoError(t, s.UnmarshalText([]byte("file:"+file)))
	return s, replace
}

// The password of the role changes while rows are written, and the server ends all its connections. For
// a moment the file has the old password, because PostgreSQL knows one password at a time.
func TestAPasswordOfPostgresIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t)
	rotatePassword(t, inFile)
}

// A binary of one's own gives the DSN by a function.
func TestAProvidedPasswordOfPostgresIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t)
	rotatePassword(t, func(_ *testing.T, value string) (setting.Secret, func(string)) {
		var current atomic.Pointer[string]
		current.Store(&value)
		return setting.NewProvidedSecret(value, func(context.Context) (string, error) { return *current.Load(), nil }),
			func(value string) { current.Store(&value) }
	})
}

// rotatePassword gets the DSN, and what changes it, from secret.
func rotatePassword(t *testing.T, secret func(t *testing.T, value string) (setting.Secret, func(string))) {
	t.Helper()
	server := sqldbtest.NewGuarded(t, "password0")
	dsn, replace := secret(t, server.DSN("password0"))
	db, _, _, err := sqldb.OpenPostgres(dsn, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), "CREATE TABLE load (n bigint PRIMARY KEY)")
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	var written, refused atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			// A commit that was under way may have happened.
			_, err := db.ExecContext(t.Context(), "INSERT INTO load VALUES ($1) ON CONFLICT DO NOTHING", written.Load())
			if err == nil {
				written.Add(1)
			} else if why, ok := sqldb.RefusalOf(err); ok && strings.Contains(why.Repair(), "read for each new connection") {
				refused.Add(1)
			}
		}
	}()
	more := func() {
		before := written.Load()
		require.Eventually(t, func() bool { return written.Load() > before+100 }, 2*time.Minute, time.Millisecond)
	}
	for _, password := range []string{"password1", "password2", "password3"} {
		more()
		before := refused.Load()
		server.SetPassword(password)
		require.Eventually(t, func() bool { return refused.Load() > before }, 2*time.Minute, time.Millisecond, "the server refuses the old password")
		replace(server.DSN(password))
	}
	more()
	stop()
	<-ended
	var rows int64
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM load").Scan(&rows))
	require.Equal(t, written.Load(), rows)
}

func TestOnlyCredentialsOfADSNAreRenewed(t *testing.T) {
	t.Parallel()
	const first = "postgres://one:old@127.0.0.1:1,127.0.0.2:2/ledger?sslmode=prefer"
	for name, c := range map[string]struct {
		now, user, password string
	}{
		"another password":       {"postgres://one:hunter2@127.0.0.1:1,127.0.0.2:2/ledger?sslmode=prefer", "one", "hunter2"},
		"another user":           {"postgres://two:hunter2@127.0.0.1:1,127.0.0.2:2/ledger?sslmode=prefer", "two", "hunter2"},
		"another database":       {"postgres://two:hunter2@127.0.0.1:1,127.0.0.2:2/other?sslmode=prefer", "one", "old"},
		"another server":         {"postgres://two:hunter2@127.0.0.3:1,127.0.0.2:2/ledger?sslmode=prefer", "one", "old"},
		"fewer servers":          {"postgres://two:hunter2@127.0.0.1:1/ledger?sslmode=prefer", "one", "old"},
		"a file":                 {"sqlite:/var/lib/ledger.db", "one", "old"},
		"half of it":             {"postgres://two:hunt", "one", "old"},
		"nothing that is a DSN":  {"postgres://two:hunter2@127.0.0.1:1,127.0.0.2:2/ledger?sslmode=never", "one", "old"},
		"certificates not there": {"postgres://two:hunter2@127.0.0.1:1,127.0.0.2:2/ledger?sslmode=prefer&sslrootcert=/gone", "one", "old"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, replace := inFile(t, first)
			var logged strings.Builder
			renew := sqldb.Renew(dsn, slog.New(slog.NewTextHandler(&logged, nil)))
			connect := func() *pgx.ConnConfig {
				conn, err := pgx.ParseConfig(first)
				require.NoError(t, err)
				require.NoError(t, renew(t.Context(), conn))
				return conn
			}
			require.Equal(t, "old", connect().Password)
			replace(c.now)
			conn := connect()
			require.Equal(t, c.user, conn.User)
			require.Equal(t, c.password, conn.Password)
			require.Equal(t, "127.0.0.1", conn.Host)
			require.Equal(t, "ledger", conn.Database)
			require.Equal(t, c.password == "old", strings.Contains(logged.String(), "stays in use"), "%s", &logged)
			require.NotContains(t, logged.String(), "hunt")
		})
	}
}

// The certificates that a DSN names are read for each connection, too.
func TestCertificatesOfADSNAreReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.pem")
	replace := func() {
		from, _ := pipelinetest.Certificate(t)
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
	}
	replace()
	dsn := "postgres://u@127.0.0.1:1/db?sslmode=verify-ca&sslrootcert=" + file
	renew := sqldb.Renew(setting.NewSecret(dsn), nil)
	connect := func() *pgx.ConnConfig {
		c, err := pgx.ParseConfig("postgres://u@127.0.0.1:1/db")
		require.NoError(t, err)
		require.NoError(t, renew(t.Context(), c))
		return c
	}
	first := connect().TLSConfig.RootCAs
	replace()
	second := connect().TLSConfig.RootCAs
	require.False(t, first.Equal(second))
	require.NoError(t, os.WriteFile(file, nil, 0o600)) // half written
	require.True(t, second.Equal(connect().TLSConfig.RootCAs))
}

// A file of passwords that is being written has none for a moment.
func TestTheLastPasswordOfAFileStaysWhileItHasNone(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "passwords")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	dsn := "postgres://u@127.0.0.1:1/db?sslmode=disable&passfile=" + file
	var logged strings.Builder
	renew := sqldb.Renew(setting.NewSecret(dsn), slog.New(slog.NewTextHandler(&logged, nil)))
	password := func() string {
		c, err := pgx.ParseConfig("postgres://u@127.0.0.1:1/db")
		require.NoError(t, err)
		require.NoError(t, renew(t.Context(), c))
		return c.Password
	}
	write("*:*:*:u:first\n")
	require.Equal(t, "first", password())
	for _, text := range []string{"", "*:*:*:u:", "*:*:*:other:hunter2\n"} {
		write(text)
		require.Equal(t, "first", password(), text)
	}
	require.NoError(t, os.Remove(file))
	require.Equal(t, "first", password())
	require.Contains(t, logged.String(), "no password any more")
	require.NotContains(t, logged.String(), "first")
	write("*:*:*:u:second\n")
	require.Equal(t, "second", password())
}
