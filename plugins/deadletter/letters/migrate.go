package letters

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations
var migrationFiles embed.FS

// Migrate brings the tables up to date. It may be called by several instances at once.
func (s *Store) Migrate(ctx context.Context) error {
	files, err := fs.Sub(migrationFiles, "migrations/"+s.dialect)
	if err != nil {
		return err
	}
	opts := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true), goose.WithTableName("dead_letter_migrations"), goose.WithSlog(s.log)}
	dialect := goose.DialectSQLite3
	if s.dialect == dialectPostgres {
		dialect = goose.DialectPostgres
		opts = append(opts, goose.WithSessionLocker(schemaLocker{}))
	}
	err = s.again(ctx, func() error { // SQLite: another process is migrating the same file
		p, err := goose.NewProvider(dialect, s.db, files, opts...)
		if err != nil {
			return err
		}
		done, err := p.Up(ctx)
		for _, m := range done {
			s.log.InfoContext(ctx, "dead letters migrated", "version", m.Source.Version)
		}
		return err
	})
	if err != nil {
		return s.wrap("migrate", err)
	}
	return nil
}

// schemaLocker lets one instance at a time migrate a schema. The lock dies with the session.
type schemaLocker struct{}

const schemaLockSQL = "(1296650051, hashtext(current_schema()))"

func (schemaLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock"+schemaLockSQL); err != nil {
		return fmt.Errorf("lock the schema: %w", err)
	}
	return nil
}

func (schemaLocker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock"+schemaLockSQL); err != nil {
		return fmt.Errorf("unlock the schema: %w", err)
	}
	return nil
}

var _ lock.SessionLocker = schemaLocker{}
