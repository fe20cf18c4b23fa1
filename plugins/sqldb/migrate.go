package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/pressly/goose/v3"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Migrations are the tables of one owner, by version.
type Migrations portable.Migrations

// Up updates the tables. Several instances of different versions may call it at once. Newer
// migrations than those in m are left alone.
func (m Migrations) Up(ctx context.Context, db *sql.DB, d portable.Dialect, log *slog.Logger) error {
	_, err := m.runMigrations(ctx, db, d, log)
	return err
}

// runMigrations is Up, and returns what has run, also with an error. If sessions have a lock_timeout, a
// migration whose lock is not free is repeated until ctx ends.
func (m Migrations) runMigrations(ctx context.Context, db *sql.DB, d portable.Dialect, log *slog.Logger) (steps []migration.Step, err error) {
	up := func() error {
		p, err := m.provider(db, d, log)
		if err != nil {
			return err
		}
		done, err := p.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			done = partial.Applied
			if partial.Failed != nil && partial.Failed.Source != nil {
				err = fmt.Errorf("migration %s: %w", partial.Failed.Source.Path, err)
			}
		}
		for _, r := range done {
			log.InfoContext(ctx, "tables migrated", "of", m.Name, "version", r.Source.Version, "seconds", r.Duration.Seconds())
			steps = append(steps, migration.Step{Version: r.Source.Version, Name: r.Source.Path, Seconds: r.Duration.Seconds()})
		}
		return err
	}
	for d == portable.Postgres {
		if err = up(); !Locked(err) {
			return steps, err
		}
		log.WarnContext(ctx, "a migration waits for a lock", "of", m.Name, logs.Err(err))
		if !loop.Sleep(ctx, openRetry) {
			return steps, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
	// Each migration is one transaction. The second of two processes finds a busy file, or the
	// tables of the first.
	err = repeatWhile(ctx, func(err error) bool { return err != nil }, up)
	return steps, err
}

func (m Migrations) provider(db *sql.DB, d portable.Dialect, log *slog.Logger) (*goose.Provider, error) {
	files, err := fs.Sub(m.Files, "migrations/"+string(d))
	if err != nil {
		return nil, err
	}
	dialect := goose.DialectSQLite3
	options := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true), goose.WithTableName(m.Table), goose.WithSlog(log)}
	if d == portable.Postgres {
		dialect, options = goose.DialectPostgres, append(options, goose.WithSessionLocker(schemaLock(m.Lock)))
	}
	return goose.NewProvider(dialect, db, files, options...)
}

// schemaLock lets one instance at a time migrate a schema. It waits in PostgreSQL's queue, while
// goose's own locker polls at most every second. The lock ends with the session.
type schemaLock int32

func (l schemaLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	return l.call(ctx, conn, "pg_advisory_lock")
}

func (l schemaLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	return l.call(ctx, conn, "pg_advisory_unlock")
}

func (l schemaLock) call(ctx context.Context, conn *sql.Conn, function string) error {
	if _, err := conn.ExecContext(ctx, "SELECT "+function+"($1, hashtext(current_schema()))", int32(l)); err != nil {
		return fmt.Errorf("%s of the schema: %w", function, err)
	}
	return nil
}
