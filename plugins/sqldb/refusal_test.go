package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

func TestOnlyTheStateOfTheDatabaseIsARefusal(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		nil, errors.New("no idea"), context.Canceled, &pgconn.PgError{Code: "40001"}, &pgconn.PgError{Code: "55P03"},
		&pgconn.PgError{Code: "57P01"}, &pgconn.PgError{Code: "53100"},
	} {
		_, refused := sqldb.RefusalOf(err)
		require.False(t, refused, "%v", err)
	}
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		db := connect(t, sqldbtest.Schema(t))
		for _, sql := range []string{
			"CREATE TABLE numbered (n bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 2) PRIMARY KEY, a int, b int, UNIQUE (a, b))",
			"CREATE TABLE parts (n int) PARTITION BY LIST (n)", "INSERT INTO numbered (a, b) VALUES (1, 1)", "INSERT INTO numbered (n, a, b) OVERRIDING SYSTEM VALUE VALUES (2, 2, 2)",
		} {
			_, err := db.ExecContext(t.Context(), sql)
			require.NoError(t, err)
		}
		for _, c := range []struct{ sql, code, table, repair string }{
			{"INSERT INTO numbered (a, b) VALUES (3, 3)", "23505", "numbered", "SELECT setval(pg_get_serial_sequence('numbered', 'n'), max(n)) FROM numbered"},
			{"INSERT INTO numbered (a, b) VALUES (3, 3)", "2200H", "", "raise its MAXVALUE"},
			{"INSERT INTO numbered (n, a, b) OVERRIDING SYSTEM VALUE VALUES (9, 1, 1)", "23505", "numbered", "read the error"},
			{"INSERT INTO parts VALUES (1)", "23514", "parts", "create the missing partition of parts"},
			{"SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(600)", "57014", "", "raise the statement_timeout"},
			{"SELECT nothing", "42703", "", "millrace migrate --dry-run"},
		} {
			_, err := db.ExecContext(t.Context(), c.sql)
			r, refused := sqldb.RefusalOf(fmt.Errorf("insert: %w", err))
			require.True(t, refused, "%s: %v", c.sql, err)
			require.Equal(t, c.code, r.Code, c.sql)
			require.Equal(t, c.table, r.Table, c.sql)
			require.Contains(t, r.Repair(), c.repair, c.sql)
		}
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		_, err := connect(t, sqldbtest.File(t)).ExecContext(t.Context(), "SELECT nothing")
		r, refused := sqldb.RefusalOf(err)
		require.True(t, refused, "%v", err)
		require.Equal(t, "sqlite 1", r.Code)
	})
}
