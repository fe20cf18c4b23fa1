// Package sqldbtest gives each test an empty database: a SQLite file or a schema of a PostgreSQL. A
// Pair is a PostgreSQL of one test, with a synchronous standby.
package sqldbtest

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Each runs the test on SQLite and on PostgreSQL in parallel, as t/sqlite and t/postgres. All
// connections with the DSN use the same database.
func Each(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		tier.Embedded(t, "postgres")
		t.Parallel()
		test(t, File(t))
	})
	t.Run("postgres", func(t *testing.T) {
		tier.Default(t)
		t.Parallel()
		test(t, Schema(t))
	})
}

// File returns the DSN of a SQLite file that does not exist yet. It is removed after the test.
func File(t testing.TB) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "test.db")
}

// adminTime bounds the creation and removal of a schema. Otherwise an open transaction of a test
// would block the removal forever.
const adminTime = 20 * time.Second

// Schema returns the DSN of a new schema in the database of MILLRACE_TEST_POSTGRES. It is dropped
// after the test. Without that variable the test is skipped.
func Schema(t testing.TB) string {
	t.Helper()
	dsn := tier.Address(t, "postgres")
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

// Refusing returns the address of a PostgreSQL server that returns an error to each client.
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
