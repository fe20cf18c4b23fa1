// Package sqldbtest gives tests an empty database: a SQLite file, and a schema of a real PostgreSQL.
package sqldbtest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"
)

// Each runs the test side by side on SQLite and on PostgreSQL, as t/sqlite and t/postgres. Everybody who opens
// the DSN sees the same database.
func Each(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, File(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, Schema(t))
	})
}

// File returns the DSN of a SQLite file that does not exist yet, and is gone after the test.
func File(t testing.TB) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "test.db")
}

// adminTime bounds making and dropping a schema: a test that left a transaction open would wait for ever.
const adminTime = 20 * time.Second

// Schema returns the DSN of a new schema in the database of MILLRACE_TEST_POSTGRES, which is dropped after the test.
// Without that variable the test is skipped.
func Schema(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv("MILLRACE_TEST_POSTGRES")
	if dsn == "" {
		t.Skip("MILLRACE_TEST_POSTGRES is not set: no PostgreSQL to test on")
	}
	schema := "test_" + strings.ToLower(ulid.Make().String())
	admin := func(sql string) {
		ctx, cancel := context.WithTimeout(context.Background(), adminTime)
		defer cancel()
		conn, err := pgx.Connect(ctx, dsn)
		require.NoError(t, err)
		defer func() { _ = conn.Close(ctx) }()
		_, err = conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	admin("CREATE SCHEMA " + schema)
	t.Cleanup(func() { admin("DROP SCHEMA " + schema + " CASCADE") })
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	return dsn + separator + "search_path=" + schema
}

// Refusing returns the address of a PostgreSQL that answers every client with an error.
func Refusing(t testing.TB, code string) (addr string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			client := pgproto3.NewBackend(conn, conn)
			if _, err := client.ReceiveStartupMessage(); err == nil {
				client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: "no"})
				_ = client.Flush()
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		served.Wait()
	})
	return l.Addr().String()
}
