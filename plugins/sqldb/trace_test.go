package sqldb_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Each statement below a span is a span with what it does, to which table, and how it failed, and without its
// values. A statement of a loop, which has no span, is none.
func TestStatementsAreSpans(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		if portable.DialectOf(dsn) != portable.Postgres {
			t.Skip("SQLite is a file, and its statements are no calls")
		}
		config, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		sqldb.TunePostgres(config)
		conn, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
		recorder := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
		exec := func(ctx context.Context, sql string, args ...any) {
			_, err := conn.Exec(ctx, sql, args...)
			require.NoError(t, err)
		}
		exec(t.Context(), `CREATE TEMPORARY TABLE traced (name text PRIMARY KEY)`)
		require.Empty(t, recorder.Ended())

		ctx, parent := provider.Tracer("test").Start(t.Context(), "process orders")
		exec(ctx, `INSERT INTO traced (name) VALUES ($1)`, "somebody")
		exec(ctx, "\n\tWITH one AS (SELECT 1) UPDATE traced SET name = $1", "somebody else")
		var name string
		require.NoError(t, conn.QueryRow(ctx, `SELECT name FROM traced WHERE name <> ''`).Scan(&name))
		require.ErrorIs(t, conn.QueryRow(ctx, `SELECT name FROM traced WHERE name = $1`, "nobody").Scan(&name), pgx.ErrNoRows)
		_, err = conn.Exec(ctx, `DELETE FROM traced WHERE 1 / (length(name) - 13) = 0`)
		require.ErrorContains(t, err, "division by zero")
		batch := &pgx.Batch{}
		batch.Queue(`SELECT 1`)
		batch.Queue(`SELECT 2`)
		require.NoError(t, conn.SendBatch(ctx, batch).Close())
		exec(ctx, `SET statement_timeout = 0`)
		parent.End()

		var names []string
		for _, span := range recorder.Ended() {
			if span.SpanContext().SpanID() == parent.SpanContext().SpanID() {
				continue
			}
			names = append(names, span.Name())
			require.Equal(t, parent.SpanContext().SpanID(), span.Parent().SpanID())
			attrs := map[attribute.Key]string{}
			for _, a := range span.Attributes() {
				attrs[a.Key] = a.Value.String()
				require.NotContains(t, a.Value.String(), "somebody")
			}
			require.Equal(t, []string{"postgresql", config.Database, config.Host}, []string{attrs["db.system.name"], attrs["db.namespace"], attrs["server.address"]})
			failed := span.Name() == "DELETE traced"
			require.Equal(t, failed, span.Status().Code == codes.Error, span.Name())
			if failed {
				require.Equal(t, []string{"22012", "22012"}, []string{attrs["error.type"], attrs["db.response.status_code"]})
			}
			if span.Name() == "BATCH" {
				require.Equal(t, "2", attrs["db.operation.batch.size"])
			} else if span.Name() != "SET" {
				require.Equal(t, "traced", attrs["db.collection.name"])
			}
		}
		require.Equal(t, []string{"INSERT traced", "UPDATE traced", "SELECT traced", "SELECT traced", "DELETE traced", "BATCH", "SET"}, names)
	})
}
